/* One-sided operations of MPI, contents checked: put, get, accumulate and the atomics.
 *
 * Between fences, under a shared lock, and with all ranks adding to one counter at once. The window is
 * "created" or "dynamic": with any but a dynamic one Open MPI reaches its neighbours' memory itself,
 * and past the provider; with a dynamic one MPICH and Intel MPI send messages instead. Rank 0 says how
 * many checks were right.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 1 << 17, ROUNDS = 200 };

static int me, ranks;
static long checks;
/* Where each rank's memory is in the window. */
static MPI_Aint *places;

static void expect(const char *what, long expected, long found)
{
    if (expected != found) {
        fprintf(stderr, "rank %d: %s: expected %ld, found %ld\n", me, what, expected, found);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    checks++;
}

/* Each rank writes into its right neighbour and reads it back, in sizes of 8 bytes to 1 MiB. */
static void put_and_get(MPI_Win window, long *memory)
{
    int right = (me + 1) % ranks, left = (me + ranks - 1) % ranks;
    long *out = malloc(WORDS * sizeof *out), *back = malloc(WORDS * sizeof *back);
    for (int words = 1; words <= WORDS; words *= 8) {
        for (int at = 0; at < words; at++)
            out[at] = me * 1000000L + words + at;
        MPI_Win_fence(0, window);
        MPI_Put(out, words, MPI_LONG, right, places[right], words, MPI_LONG, window);
        MPI_Win_fence(0, window);
        for (int at = 0; at < words; at++)
            expect("word that was put", left * 1000000L + words + at, memory[at]);
        MPI_Get(back, words, MPI_LONG, right, places[right], words, MPI_LONG, window);
        MPI_Win_fence(0, window);
        for (int at = 0; at < words; at++)
            expect("word that was got", out[at], back[at]);
    }
    free(out);
    free(back);
}

static void accumulate(MPI_Win window, long *memory)
{
    long ones[64];
    for (int at = 0; at < 64; at++) {
        ones[at] = 1 + at;
        memory[at] = 0;
    }
    MPI_Win_fence(0, window);
    for (int peer = 0; peer < ranks; peer++)
        MPI_Accumulate(ones, 64, MPI_LONG, peer, places[peer], 64, MPI_LONG, MPI_SUM, window);
    MPI_Win_fence(0, window);
    for (int at = 0; at < 64; at++)
        expect("sum in a window", (long)ranks * (1 + at), memory[at]);
}

/* All ranks count up another word by compare-and-swap. */
static void count_by_swaps(MPI_Win window)
{
    for (int round = 0; round < ROUNDS; round++) {
        long expected = 0, found;
        for (;; expected = found) {
            long next = expected + 1;
            MPI_Compare_and_swap(&next, &expected, &found, MPI_LONG, 0, places[0] + sizeof next, window);
            MPI_Win_flush(0, window);
            if (found == expected)
                break;
        }
    }
}

/* All ranks count up one word of rank 0, by fetch-and-add and then by compare-and-swap. */
static void count_together(MPI_Win window, long *memory)
{
    long one = 1, before, seen = -1;
    memory[0] = memory[1] = 0;
    MPI_Win_fence(0, window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, places[0], MPI_SUM, window);
        MPI_Win_flush(0, window);
        if (before <= seen)
            expect("a counter that grows", seen + 1, before);
        seen = before;
    }
    count_by_swaps(window);
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    long total[2] = {-1, -1};
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
    MPI_Get(total, 2, MPI_LONG, 0, places[0], 2, MPI_LONG, window);
    MPI_Win_unlock(0, window);
    expect("count by fetch-and-add", (long)ranks * ROUNDS, total[0]);
    expect("count by compare-and-swap", (long)ranks * ROUNDS, total[1]);
}

int main(int argc, char **argv)
{
    long *memory, sum = 0;
    int dynamic = argc == 2 && !strcmp(argv[1], "dynamic");
    MPI_Win window;
    if (argc != 2 || (!dynamic && strcmp(argv[1], "created"))) {
        fprintf(stderr, "usage: %s created|dynamic\n", argv[0]);
        return 2;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    memory = calloc(WORDS, sizeof *memory);
    places = calloc(ranks, sizeof *places);
    if (dynamic) {
        MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
        MPI_Win_attach(window, memory, WORDS * sizeof *memory);
        MPI_Get_address(memory, &places[me]);
    } else {
        MPI_Win_create(memory, WORDS * sizeof *memory, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    }
    MPI_Allgather(MPI_IN_PLACE, 1, MPI_AINT, places, 1, MPI_AINT, MPI_COMM_WORLD);
    put_and_get(window, memory);
    accumulate(window, memory);
    count_together(window, memory);
    MPI_Barrier(MPI_COMM_WORLD);
    if (dynamic)
        MPI_Win_detach(window, memory);
    MPI_Win_free(&window);
    MPI_Reduce(&checks, &sum, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!me)
        printf("%ld checks passed on %d ranks\n", sum, ranks);
    MPI_Finalize();
    return 0;
}
