//! Messages longer than the buffer that they match.

use kestrel_core::{error::Errno, flags::Flags, memory::Pieces, transport::Provider};

use crate::bed::{Bed, Memory, Receive, Send, pattern, same};

/// A message and the room for it: inline, spilled, in a chunk, in several parts,
/// with consent.
const LENGTHS: [(usize, &[usize]); 6] = [
    (8, &[0, 7]),
    (48, &[0, 1, 47]),
    (392, &[0, 48, 391]),
    (8192, &[0, 8, 4096, 8191]),
    (65536, &[0, 8193, 65535]),
    (1 << 20, &[0, 40, 65536, 65537, (1 << 20) - 1]),
];

pub fn what_does_not_fit_is_counted<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    for (length, rooms) in LENGTHS {
        for &room in rooms {
            for (expected, tagged, cut) in [
                (true, true, false),
                (false, true, false),
                (true, false, true),
                (false, false, true),
            ] {
                let bytes = Memory::from(pattern(length as u64, length));
                let into = Memory::zeroed(room + 8);
                let piece = into.piece().part(0, room);
                let pieces = [piece.part(0, room / 2), piece.part(room / 2, room)];
                let pieces = if cut { Pieces::Many(&pieces) } else { Pieces::One(piece) };
                let tag = tagged.then_some((3, 0));
                let receive = Receive { pieces, tag, context: 5, ..Receive::default() };
                if expected {
                    world.nodes[1].post_receive(&receive).unwrap();
                }
                let send = Send {
                    pieces: bytes.all(),
                    tag: tag.map(|(tag, _)| tag),
                    data: Some(17),
                    context: 6,
                    ..Send::default()
                };
                world.nodes[0].post_send(1, &send).unwrap();
                if !expected {
                    world.poll(5);
                    world.nodes[1].post_receive(&receive).unwrap();
                }
                let error = world.received(1).bad(Errno::TRUNC);
                let what = format!("{length} bytes into {room}, expected: {expected}: {error:?}");
                assert_eq!(error.context, 5, "{what}");
                assert_eq!(error.overflow, (length - room) as u64, "{what}");
                assert_eq!(error.length, room as u64, "{what}");
                assert_eq!((error.data, error.source), (17, 0), "{what}");
                let kind = if tagged { Flags::TAGGED } else { Flags::MSG };
                assert_eq!(error.flags, kind | Flags::RECV | Flags::REMOTE_CQ_DATA, "{what}");
                assert!(error.reason.contains(&length.to_string()), "{what}");
                same(&into.bytes()[..room], &bytes.bytes()[..room], &what);
                assert_eq!(&into.bytes()[room..], [0; 8], "{what}: beyond the buffer");
                assert_eq!(world.sent(0).context(), 6, "{what}");
            }
        }
    }
    world.nothing_more();
}
