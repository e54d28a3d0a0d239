//! Applications of older versions of the interface: their attributes have fewer fields, and what is behind the
//! last one is not theirs.

use std::{
    ffi::c_void,
    mem::{self, offset_of},
    ptr::{null, null_mut},
};

use crate::{
    abi::{
        attributes::Iovec,
        fid::FidStx,
        info::{DomainAttr, Info, TxAttr},
        message::{Msg, MsgTagged},
    },
    contexts::{open_sep, scalable_world, tx_context},
    discovery::provider,
    host::host,
    world::{World, close, cq_attr},
};

const V1_8: u32 = 1 << 16 | 8;
const V1_17: u32 = 1 << 16 | 17;
const V1_20: u32 = 1 << 16 | 20;
const V1_22: u32 = 1 << 16 | 22;

/// Two pages of which the second cannot be read.
struct Guarded {
    start: *mut c_void,
    page: usize,
}

impl Guarded {
    fn new() -> Guarded {
        // SAFETY: a new mapping, and a part of it.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let (both, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let start = libc::mmap(null_mut(), 2 * page, both, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(start.byte_add(page), page, libc::PROT_NONE), 0);
            Guarded { start, page }
        }
    }

    /// The last `bytes` that can be read: zeroes.
    fn last<T>(&self, bytes: usize) -> *mut T {
        self.start.wrapping_byte_add(self.page - bytes).cast()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { libc::munmap(self.start, 2 * self.page) };
    }
}

#[test]
fn attributes_are_read_up_to_their_end() {
    let Some(host) = host("attributes_are_read_up_to_their_end") else { return };
    let guarded = Guarded::new();
    for (version, domain, transmit) in [
        (V1_8, offset_of!(DomainAttr, tclass), offset_of!(TxAttr, tclass)),
        (V1_17, offset_of!(DomainAttr, max_ep_auth_key), size_of::<TxAttr>()),
        (V1_20, offset_of!(DomainAttr, max_group_id), size_of::<TxAttr>()),
    ] {
        for is_domain in [true, false] {
            let mut found = null_mut();
            // SAFETY: zeroes are hints that ask for nothing; answers are libfabric's to free.
            unsafe {
                let mut hints: Info = mem::zeroed();
                match is_domain {
                    true => hints.domain_attr = guarded.last(domain),
                    false => hints.tx_attr = guarded.last(transmit),
                }
                let getinfo = provider().getinfo;
                assert_eq!(
                    getinfo(version, null(), null(), 0, &raw const hints, &raw mut found),
                    0
                );
                (host.freeinfo)(found);
            }
        }
    }
}

/// "Providers will return the actual attributes assigned to the context through the attr parameter": as many of
/// them as the application knows.
#[test]
fn attributes_are_written_up_to_their_end() {
    let Some(host) = host("attributes_are_written_up_to_their_end") else { return };
    #[repr(C)]
    struct Old {
        attributes: [u64; offset_of!(TxAttr, tclass) / 8],
        behind: u64,
    }
    let mut world = scalable_world(host);
    world.reopen_as(V1_8);
    let sep = open_sep(&world).unwrap();
    let mut old = Old { attributes: [0; _], behind: u64::MAX };
    let context = tx_context(sep, 0, (&raw mut old).cast()).expect("what is behind is no class");
    assert!(old.attributes.iter().any(|word| *word != 0) && old.behind == u64::MAX);
    let mut old = Old { attributes: [0; _], behind: u64::MAX };
    let mut shared: *mut FidStx = null_mut();
    // SAFETY: the domain is open, and there are as many attributes as its version knows.
    unsafe {
        let open = (*(*world.domain).ops).stx_ctx;
        assert_eq!(open(world.domain, (&raw mut old).cast(), &raw mut shared, null_mut()), 0);
    }
    assert!(old.attributes.iter().any(|word| *word != 0) && old.behind == u64::MAX);
    assert_eq!((close(shared), close(context), close(sep)), (0, 0, 0));
}

/// "Prior to libfabric 1.22, the desc parameter was ignored" (fi_mr(3)): it may point anywhere.
#[test]
fn lists_of_descriptors_are_followed_since_1_22() {
    let Some(host) = host("lists_of_descriptors_are_followed_since_1_22") else { return };
    let guarded = Guarded::new();
    let nowhere: *mut *mut c_void = guarded.last(0);
    let mut none = null_mut();
    // Some pass the descriptor of their one buffer where a list of one is meant.
    let itself = std::ptr::without_provenance_mut(1 << 63 | 77);
    for (version, desc) in [(V1_17, nowhere), (V1_22, &raw mut none), (V1_22, itself)] {
        let mut world = World::empty(host, |_| {});
        world.reopen_as(version);
        for _ in 0..2 {
            world.add_node(&mut cq_attr(), 0);
        }
        let [from, to] = [world.nodes[0], world.nodes[1]];
        let (mut sent, mut received) = ([7_u8; 16], [0_u8; 16]);
        for round in 0..4 {
            sent.fill(round + 1);
            let [out, into] = [&mut sent, &mut received]
                .map(|it| Iovec { base: it.as_mut_ptr().cast(), len: 16 });
            let tagged = |iov: *const Iovec, addr| MsgTagged {
                msg_iov: iov,
                desc,
                iov_count: 1,
                addr,
                tag: 5,
                ignore: 0,
                context: null_mut(),
                data: 0,
            };
            let plain = |iov: *const Iovec, addr| Msg {
                msg_iov: iov,
                desc,
                iov_count: 1,
                addr,
                context: null_mut(),
                data: 0,
            };
            // SAFETY: the endpoints are enabled, and the buffers stay until the message has come.
            unsafe {
                let (msg, tag, context) = (&*(*to.ep).msg, &*(*to.ep).tagged, null_mut());
                let posted = match round {
                    0 => [
                        (tag.recvmsg)(to.ep, &tagged(&into, 0), 0),
                        (tag.sendmsg)(from.ep, &tagged(&out, 1), 0),
                    ],
                    1 => [
                        (msg.recvmsg)(to.ep, &plain(&into, 0), 0),
                        (msg.sendmsg)(from.ep, &plain(&out, 1), 0),
                    ],
                    2 => [
                        (tag.recvv)(to.ep, &into, desc, 1, 0, 5, 0, context),
                        (tag.sendv)(from.ep, &out, desc, 1, 1, 5, context),
                    ],
                    _ => [
                        (msg.recvv)(to.ep, &into, desc, 1, 0, context),
                        (msg.sendv)(from.ep, &out, desc, 1, 1, context),
                    ],
                };
                assert_eq!(posted, [0, 0]);
            }
            world.completion(to);
            world.completion(from);
            assert_eq!(received, sent);
        }
    }
}
