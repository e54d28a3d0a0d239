/* Messages in the ways that MPI programs send them, each byte of them checked.
 *
 * A ring of every size, many messages at once with tags out of order, receives from anyone,
 * probes with a claim, synchronous sends, cancels, and all-to-all. Rank 0 says how many were right.
 *
 *   exchange LONGEST    the longest message in the ring, in bytes
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int me, ranks;
static long checks;

static void fail(const char *what, long expected, long found)
{
    fprintf(stderr, "rank %d: %s: expected %ld, found %ld\n", me, what, expected, found);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void expect(const char *what, long expected, long found)
{
    if (expected != found)
        fail(what, expected, found);
    checks++;
}

/* The byte at a place of the message with some seed. */
static unsigned char byte_of(long seed, size_t at) { return (seed * 131 + at * 7 + (at >> 8)) & 255; }

static void fill(unsigned char *buffer, size_t size, long seed)
{
    for (size_t at = 0; at < size; at++)
        buffer[at] = byte_of(seed, at);
}

static void check(const char *what, const unsigned char *buffer, size_t size, long seed)
{
    for (size_t at = 0; at < size; at++)
        if (buffer[at] != byte_of(seed, at))
            fail(what, byte_of(seed, at), buffer[at]);
    checks++;
}

static void *buffer_of(size_t size)
{
    void *buffer = malloc(size + 1);
    if (!buffer)
        fail("malloc", size, 0);
    return buffer;
}

/* Each rank passes a message to its right neighbour, of every power of two up to the longest. */
static void ring(size_t most)
{
    int right = (me + 1) % ranks, left = (me + ranks - 1) % ranks;
    unsigned char *out = buffer_of(most), *in = buffer_of(most);
    for (size_t size = 0; size <= most; size = size ? size * 2 : 1) {
        int count;
        MPI_Status status;
        fill(out, size, me + size);
        MPI_Sendrecv(out, size, MPI_BYTE, right, 3, in, most, MPI_BYTE, left, 3, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        expect("length in the ring", size, count);
        check("contents in the ring", in, size, left + size);
    }
    free(out);
    free(in);
}

/* Many messages under way at once; the receives are posted in the opposite order of the sends. */
static void crowd(size_t size)
{
    enum { COUNT = 256 };
    int right = (me + 1) % ranks, left = (me + ranks - 1) % ranks;
    unsigned char *out = buffer_of(COUNT * size), *in = buffer_of(COUNT * size);
    MPI_Request requests[2 * COUNT];
    for (int at = 0; at < COUNT; at++) {
        fill(out + at * size, size, me + at);
        MPI_Isend(out + at * size, size, MPI_BYTE, right, at, MPI_COMM_WORLD, &requests[at]);
    }
    for (int at = COUNT - 1; at >= 0; at--)
        MPI_Irecv(in + at * size, size, MPI_BYTE, left, at, MPI_COMM_WORLD, &requests[COUNT + at]);
    MPI_Waitall(2 * COUNT, requests, MPI_STATUSES_IGNORE);
    for (int at = 0; at < COUNT; at++)
        check("contents in the crowd", in + at * size, size, left + at);
    free(out);
    free(in);
}

/* Rank 0 hears all the others, whoever comes first, by plain receives or by probes that claim.
 *
 * A claim does not meet a synchronous send: Open MPI 4.1 never answers it (mtl ofi; the sender waits
 * for ever on tcp;ofi_rxm and on sockets, too).
 */
static void anyone(size_t size, int claim)
{
    enum { COUNT = 20 };
    unsigned char *buffer = buffer_of(size);
    for (int at = 0; me && at < COUNT; at++) {
        fill(buffer, size, me + at);
        if (!claim && at % 2)
            MPI_Ssend(buffer, size, MPI_BYTE, 0, at, MPI_COMM_WORLD);
        else
            MPI_Send(buffer, size, MPI_BYTE, 0, at, MPI_COMM_WORLD);
    }
    int *next = calloc(ranks, sizeof *next);
    for (int at = 0; !me && at < COUNT * (ranks - 1); at++) {
        MPI_Status status;
        if (claim) {
            MPI_Message message;
            MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
            MPI_Mrecv(buffer, size, MPI_BYTE, &message, &status);
        } else {
            MPI_Recv(buffer, size, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        }
        expect("order of one sender", next[status.MPI_SOURCE]++, status.MPI_TAG);
        check("contents from anyone", buffer, size, status.MPI_SOURCE + status.MPI_TAG);
    }
    free(next);
    free(buffer);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A receive that nobody answers can be canceled, and the next message goes to the next receive. */
static void cancel(void)
{
    int right = (me + 1) % ranks, left = (me + ranks - 1) % ranks, canceled, lost = -1, found = -1;
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(&lost, 1, MPI_INT, left, 99, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &canceled);
    expect("canceled", 1, canceled);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Sendrecv(&me, 1, MPI_INT, right, 99, &found, 1, MPI_INT, left, 99, MPI_COMM_WORLD, &status);
    expect("message after a cancel", left, found);
    expect("buffer of the canceled receive", -1, lost);
}

static void all_to_all(size_t size)
{
    unsigned char *out = buffer_of(ranks * size), *in = buffer_of(ranks * size);
    for (int peer = 0; peer < ranks; peer++)
        fill(out + peer * size, size, me * 1000 + peer);
    MPI_Alltoall(out, size, MPI_BYTE, in, size, MPI_BYTE, MPI_COMM_WORLD);
    for (int peer = 0; peer < ranks; peer++)
        check("contents of all to all", in + peer * size, size, peer * 1000 + me);
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 2 || atol(argv[1]) < 1)
        fail("arguments", 2, argc);
    ring(atol(argv[1]));
    const size_t sizes[] = {1, 100, 4096, 20000, 300000};
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        crowd(sizes[at]);
        anyone(sizes[at], 0);
        anyone(sizes[at], 1);
        all_to_all(sizes[at]);
    }
    cancel();
    long sum = 0;
    MPI_Reduce(&checks, &sum, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!me)
        printf("%ld checks passed on %d ranks\n", sum, ranks);
    MPI_Finalize();
    return 0;
}
