//! From the arguments of a call to core's posts. All of it is the data path: no
//! allocation, no lock, nothing that unwinds.

use std::ffi::c_void;

use kestrel_core::{
    endpoint::{DefaultFlags, PostError},
    flags::Flags,
    memory::{Piece, Pieces},
    memory_region::descriptor::Descriptor,
    operation::{ReceivePost, SendPost},
};

use super::{
    State,
    buffers::{List, bad_list, is_missing, room},
    receives::{Receives, receiver},
};
use crate::{
    abi::{
        attributes::Iovec,
        fid::FidEp,
        message::{Msg, MsgTagged},
    },
    memory_region::{DescriptorLists, region_of},
    object::{self, Header},
    outcome::{posted, refused_argument},
    triggered,
};

/// The tag of a message, and the bits of it that a receive ignores.
#[derive(Clone, Copy)]
pub struct Tag {
    pub family: Flags,
    pub tag: u64,
    pub ignore: u64,
}

impl Tag {
    /// Of messages without a tag.
    pub const NONE: Tag = Tag { family: Flags::MSG, tag: 0, ignore: 0 };

    #[inline(always)]
    pub fn new(tag: u64, ignore: u64) -> Tag {
        Tag { family: Flags::TAGGED, tag, ignore }
    }
}

/// # Safety
/// `ep` is an open endpoint, as for [`object::state`].
#[inline(always)]
pub unsafe fn state<'a>(ep: *mut FidEp) -> &'a State {
    // SAFETY: the caller vouches for it.
    unsafe { object::state(ep) }
}

/// What a `…msg` call without its message is answered with.
#[cold]
pub fn no_message() -> isize {
    refused_argument("msg is null")
}

/// Sends one buffer with the endpoint's default flags, and remote data if there is some.
///
/// # Safety
/// `ep` is open; the buffer may be read until the operation completes.
#[inline(always)]
pub unsafe fn send(
    ep: *mut FidEp,
    (buffer, length, descriptor): (*const c_void, usize, *mut c_void),
    data: Option<u64>,
    to: u64,
    tag: Tag,
    context: *mut c_void,
) -> isize {
    if is_missing(buffer, length) {
        return refused_argument("a null buffer with a length");
    }
    // SAFETY: the caller vouches for both.
    let (state, piece) = unsafe { (state(ep), Piece::new(buffer.cast::<u8>().cast_mut(), length)) };
    let flags = state.defaults.send();
    // SAFETY: the pieces are the buffer.
    unsafe {
        let buffer = (Pieces::One(piece), region_of(descriptor));
        send_pieces(state, buffer, data, to, tag, context, flags)
    }
}

/// Sends pieces with flags of their own.
///
/// # Safety
/// The pieces may be read until the operation completes; as [`start_send`].
#[inline(always)]
pub unsafe fn send_pieces(
    state: &State,
    (pieces, region): (Pieces<'_>, Option<Descriptor>),
    data: Option<u64>,
    to: u64,
    tag: Tag,
    context: *mut c_void,
    flags: Flags,
) -> isize {
    // SAFETY: the caller vouches for it.
    unsafe {
        let post = of_send(pieces, data, to, tag, context, flags);
        start_send(state, SendPost { region, ..post })
    }
}

/// Sends what a message says.
///
/// # Safety
/// As calls from C (see the crate's documentation).
#[inline(always)]
pub unsafe fn send_message(state: &State, msg: &MsgTagged, tag: Tag, flags: u64) -> isize {
    // SAFETY: the caller vouches for it.
    unsafe { with_send(msg, state.lists(), tag, flags, |post| start_send(state, post)) }
}

/// Posts a send: with FI_TRIGGER not now.
///
/// # Safety
/// As [`triggered::start`].
#[inline(always)]
unsafe fn start_send(state: &State, post: SendPost<'_>) -> isize {
    let endpoint = &state.endpoint;
    // SAFETY: the caller vouches for it.
    unsafe {
        triggered::start(
            post,
            || endpoint.options().capabilities,
            |post| endpoint.post_send(post),
            |post, when| endpoint.trigger_send(post, when),
        )
    }
}

/// Hands what a message says to `post`, which sends it.
///
/// # Safety
/// As calls from C (see the crate's documentation).
#[inline(always)]
pub unsafe fn with_send(
    msg: &MsgTagged,
    lists: DescriptorLists,
    tag: Tag,
    flags: u64,
    post: impl FnOnce(SendPost<'_>) -> isize,
) -> isize {
    let Some(flags) = own_flags(flags) else { return bad_flags() };
    // SAFETY: the caller vouches for it.
    let Some(list) = (unsafe { List::new(msg.msg_iov, msg.iov_count) }) else { return bad_list() };
    let data = data_of(flags, msg.data);
    // SAFETY: as above.
    let region = unsafe { lists.region(msg.desc, msg.iov_count) };
    let send = of_send(list.pieces(), data, msg.addr, tag, msg.context, flags);
    post(SendPost { region, ..send })
}

/// A message that has no tag, as one with a tag that does not count.
#[inline(always)]
pub fn untagged(msg: &Msg) -> MsgTagged {
    let Msg { msg_iov, desc, iov_count, addr, context, data } = *msg;
    MsgTagged { msg_iov, desc, iov_count, addr, tag: 0, ignore: 0, context, data }
}

/// What is posted to send a message.
#[inline(always)]
fn of_send(
    pieces: Pieces<'_>,
    data: Option<u64>,
    to: u64,
    tag: Tag,
    context: *mut c_void,
    flags: Flags,
) -> SendPost<'_> {
    let mut flags = flags | tag.family;
    if data.is_some() {
        flags |= Flags::REMOTE_CQ_DATA;
    }
    SendPost {
        pieces,
        to,
        tag: tag.tag,
        data: data.unwrap_or(0),
        context: context as u64,
        flags,
        region: None,
        attachment: None,
    }
}

/// Sends a copy of a buffer, without a completion.
///
/// # Safety
/// `ep` is open; the buffer may be read during the call.
#[inline(always)]
pub unsafe fn inject(
    ep: *mut FidEp,
    (buffer, length): (*const c_void, usize),
    data: Option<u64>,
    to: u64,
    tag: Tag,
) -> isize {
    if is_missing(buffer, length) {
        return refused_argument("a null buffer with a length");
    }
    // SAFETY: the caller vouches for both; an injected message is copied before the
    // call returns.
    let (state, piece) = unsafe { (state(ep), Piece::new(buffer.cast::<u8>().cast_mut(), length)) };
    let mut flags = tag.family | DefaultFlags::injected(state.defaults.send());
    if data.is_some() {
        flags |= Flags::REMOTE_CQ_DATA;
    }
    posted(state.endpoint.post_unreported(SendPost {
        pieces: Pieces::One(piece),
        to,
        tag: tag.tag,
        data: data.unwrap_or(0),
        context: 0,
        flags,
        region: None,
        attachment: None,
    }))
}

/// Receives into one buffer with the default flags.
///
/// # Safety
/// `ep` is open; the buffer may be written to until the operation completes.
#[inline(always)]
pub unsafe fn receive<H: Header<State: Receives>>(
    ep: *mut FidEp,
    (buffer, length, descriptor): (*mut c_void, usize, *mut c_void),
    from: u64,
    tag: Tag,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller vouches for both.
    let (state, piece) = unsafe { (receiver::<H>(ep), room(buffer, length)) };
    let flags = state.default_flags(tag.family);
    // SAFETY: the pieces are the buffer.
    unsafe {
        let buffer = (Pieces::One(piece), region_of(descriptor));
        receive_pieces(state, buffer, from, tag, context, flags)
    }
}

/// Receives into a list of buffers with the default flags.
///
/// # Safety
/// As calls from C (see the crate's documentation).
#[inline(always)]
pub unsafe fn receive_list(
    state: &impl Receives,
    (iov, descriptors, count): (*const Iovec, *const *mut c_void, usize),
    from: u64,
    tag: Tag,
    context: *mut c_void,
) -> isize {
    let flags = state.default_flags(tag.family);
    let count = if state.ignores_buffers(flags | tag.family) { 0 } else { count };
    // SAFETY: the caller vouches for it.
    unsafe {
        let Some(list) = List::of_room(iov, count) else { return bad_list() };
        let buffers = (list.pieces(), state.lists().region(descriptors, count));
        receive_pieces(state, buffers, from, tag, context, flags)
    }
}

/// Receives into pieces with flags of their own.
///
/// # Safety
/// The pieces may be written to until the operation completes; as [`start_receive`].
#[inline(always)]
unsafe fn receive_pieces(
    state: &impl Receives,
    (pieces, region): (Pieces<'_>, Option<Descriptor>),
    from: u64,
    tag: Tag,
    context: *mut c_void,
    flags: Flags,
) -> isize {
    // SAFETY: the caller vouches for it.
    unsafe {
        let post = of_receive(pieces, from, tag, context, flags);
        start_receive(state, ReceivePost { region, ..post })
    }
}

/// Receives what a message says.
///
/// # Safety
/// As [`send_message`].
#[inline(always)]
pub unsafe fn receive_message(
    state: &impl Receives,
    msg: &MsgTagged,
    tag: Tag,
    flags: u64,
) -> isize {
    // SAFETY: the caller vouches for it.
    unsafe {
        let ignores = |flags| state.ignores_buffers(flags);
        with_receive(msg, state.lists(), tag, flags, ignores, |post| start_receive(state, post))
    }
}

/// Posts a receive: with FI_TRIGGER not now.
///
/// # Safety
/// As [`start_send`].
#[inline(always)]
unsafe fn start_receive(state: &impl Receives, post: ReceivePost<'_>) -> isize {
    // SAFETY: the caller vouches for it.
    unsafe {
        triggered::start(
            post,
            || state.capabilities(),
            |post| state.post_receive(post),
            |post, when| state.trigger_receive(post, when),
        )
    }
}

/// Hands what a message says to `post`, which receives it; not the buffers where `ignores` says that
/// nobody looks at them.
///
/// # Safety
/// As [`with_send`].
#[inline(always)]
pub unsafe fn with_receive(
    msg: &MsgTagged,
    lists: DescriptorLists,
    tag: Tag,
    flags: u64,
    ignores: impl FnOnce(Flags) -> bool,
    post: impl FnOnce(ReceivePost<'_>) -> isize,
) -> isize {
    let Some(flags) = own_flags(flags) else { return bad_flags() };
    // "If this flag is set, the input buffer(s) and length parameters are ignored" (fi_tagged(3)).
    let count = if ignores(flags | tag.family) { 0 } else { msg.iov_count };
    // SAFETY: the caller vouches for it.
    let Some(list) = (unsafe { List::of_room(msg.msg_iov, count) }) else { return bad_list() };
    // SAFETY: as above.
    let region = unsafe { lists.region(msg.desc, count) };
    let receive = of_receive(list.pieces(), msg.addr, tag, msg.context, flags);
    post(ReceivePost { region, ..receive })
}

/// What is posted to receive one.
#[inline(always)]
fn of_receive(
    pieces: Pieces<'_>,
    from: u64,
    tag: Tag,
    context: *mut c_void,
    flags: Flags,
) -> ReceivePost<'_> {
    ReceivePost {
        pieces,
        from,
        tag: tag.tag,
        ignore: tag.ignore,
        context: context as u64,
        flags: flags | tag.family,
        region: None,
        attachment: None,
    }
}

/// The flags of a `…msg` call; none if they name a family, which is not theirs to say.
#[inline(always)]
fn own_flags(flags: u64) -> Option<Flags> {
    let flags = Flags::from_bits_retain(flags);
    (!flags.intersects(Flags::MSG | Flags::TAGGED)).then_some(flags)
}

/// What flags that cannot be taken are answered with.
#[cold]
fn bad_flags() -> isize {
    posted(Err(PostError::BadFlags { flags: Flags::MSG | Flags::TAGGED }))
}

/// Remote data, if the flags say that there is some.
#[inline(always)]
fn data_of(flags: Flags, data: u64) -> Option<u64> {
    flags.contains(Flags::REMOTE_CQ_DATA).then_some(data)
}
