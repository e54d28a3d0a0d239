//! Address vectors against the manual page, and against a plain model.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::error::{Errno, HasErrno};
use crate::event_queue::{Event, EventQueueAttributes, EventRead};

mod auth_keys;
mod storage;

fn address(text: &str) -> Address {
    text.parse::<SocketAddr>().unwrap().into()
}

/// The `n`th of many distinct addresses of both families.
fn nth(n: u32) -> Address {
    let v4 = Address::new(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into(), n as u16);
    let v6 = Address::new(std::net::Ipv6Addr::from_bits(1 << 127 | u128::from(n)).into(), 7);
    if n.is_multiple_of(3) { v6 } else { v4 }
}

fn open(attributes: AddressVectorAttributes) -> AddressVector {
    AddressVector::open(attributes).unwrap()
}

fn fi_addrs(insertion: &Insertion) -> Vec<FiAddr> {
    insertion.fi_addrs().collect()
}

#[test]
fn a_table_counts_from_zero_and_fills_its_lowest_gap_first() {
    let av = open(AddressVectorAttributes::default());
    assert_eq!(av.attributes().kind, AddressVectorKind::Table);
    let addresses: Vec<Address> = (0..100).map(nth).collect();
    assert_eq!(fi_addrs(&av.insert(&addresses[..50])), Vec::from_iter(0..50));
    assert_eq!(fi_addrs(&av.insert(&addresses[50..])), Vec::from_iter(50..100));
    av.remove(&[70, 3, 20]).unwrap();
    assert_eq!(av.len(), 97);
    assert_eq!(fi_addrs(&av.insert(&addresses[..4])), [3, 20, 70, 100]);
    assert_eq!(av.lookup(20), Ok(nth(1)));
    assert!(av.capacity() >= 101);
}

/// "Indicates the expected number of addresses that will be inserted into the AV."
#[test]
fn what_is_expected_has_room() {
    let room = |count| open(AddressVectorAttributes { count, ..Default::default() }).expected();
    assert_eq!(room(0), 0);
    assert!(room(1000) >= 1000);
    // A number that cannot be meant costs no more than much.
    assert!((1 << 20..1 << 24).contains(&room(usize::MAX)));
}

#[test]
fn bad_or_removed_addresses_are_invalid() {
    let av = open(AddressVectorAttributes::default());
    av.insert(&[nth(0), nth(1), nth(2)]);
    for fi_addr in [3, 1 << 32, FI_ADDR_UNSPEC, 1 << 63] {
        let missing = AddressVectorError::NotInserted { fi_addr };
        assert_eq!(missing.errno(), Errno::INVAL);
        assert_eq!(av.lookup(fi_addr), Err(missing.clone()));
        assert_eq!(av.remove(&[fi_addr]), Err(missing));
    }
    // All but the bad ones go, and the first bad one is named.
    let missing = AddressVectorError::NotInserted { fi_addr: 9 };
    assert_eq!(av.remove(&[0, 9, 2, 0]), Err(missing));
    assert_eq!((av.get(0), av.get(1), av.get(2)), (None, Some(nth(1)), None));
    assert_eq!(av.remove(&[0]), Err(AddressVectorError::NotInserted { fi_addr: 0 }));
}

#[test]
fn a_failed_entry_is_reported_and_does_not_stop_the_next() {
    let av = open(AddressVectorAttributes::default());
    let [wildcard, mapped] = ["0.0.0.0:5", "[::ffff:0.0.0.0]:5"].map(address);
    let inserted = av.insert(&[nth(1), wildcard, nth(2), mapped]);
    assert_eq!(inserted.count(), 2);
    assert_eq!(fi_addrs(&inserted), [0, FI_ADDR_NOTAVAIL, 1, FI_ADDR_NOTAVAIL]);
    let errors: Vec<i32> = inserted.sync_errors().collect();
    assert_eq!(errors, [0, Errno::ADDRNOTAVAIL.0, 0, Errno::ADDRNOTAVAIL.0]);
    let mut results = Vec::new();
    let bytes = [Address::from_bytes(&[0; 16]), Address::from_bytes(&nth(3).to_bytes())];
    assert_eq!(av.insert_each(bytes, Marks::None, |result| results.push(result)), 1);
    assert_eq!(results[0].as_ref().unwrap_err().errno(), Errno::INVAL);
    assert_eq!(results[1], Ok(2));
}

#[test]
fn symmetric_insertion_goes_node_by_node() {
    let av = open(AddressVectorAttributes::default());
    let range = SymmetricRange::new(address("10.1.1.1:5000"), 2, 2).unwrap();
    let mut inserted = Vec::new();
    let count = av.insert_each([range], Marks::None, |result| inserted.push(result.unwrap()));
    assert_eq!((count, inserted), (4, vec![0, 1, 2, 3]));
    assert_eq!(av.get(1), Some(address("10.1.1.1:5001")));
    assert_eq!(av.get(2), Some(address("10.1.1.2:5000")));
}

#[test]
fn epochs_and_versions_tell_of_every_change() {
    let av = open(AddressVectorAttributes::default());
    assert_eq!((av.insertions(), av.removals()), (0, 0));
    av.insert(&[nth(1), nth(2)]);
    assert_eq!((av.insertions(), av.removals()), (2, 0));
    let before = av.version(1).unwrap();
    av.remove(&[1]).unwrap();
    assert_eq!((av.insertions(), av.removals(), av.version(1)), (2, 1, None));
    // The same address at the same place is still another insertion.
    assert_eq!(av.insert_one(nth(2)), Ok(1));
    assert_ne!(av.version(1).unwrap(), before);
    av.remove(&[7]).unwrap_err();
    assert_eq!((av.insertions(), av.removals()), (3, 1));
}

#[test]
fn receive_context_bits_name_a_context_and_not_another_address() {
    let av = open(AddressVectorAttributes { rx_ctx_bits: 4, ..Default::default() });
    av.insert(&[nth(1), nth(2)]);
    let named = fi_rx_addr(1, 9, 4);
    assert_eq!(named, 9 << 60 | 1);
    assert_eq!((av.get(named), av.rx_index(named)), (Some(nth(2)), 9));
    assert_eq!(av.get(FI_ADDR_UNSPEC), None);
    let none = open(AddressVectorAttributes::default());
    none.insert(&[nth(1), nth(2)]);
    assert_eq!((none.get(named), none.rx_index(named), fi_rx_addr(5, 0, 0)), (None, 0, 5));
    let widest = open(AddressVectorAttributes { rx_ctx_bits: 32, ..Default::default() });
    assert_eq!(widest.get(FI_ADDR_UNSPEC), None);
    let refused =
        AddressVector::open(AddressVectorAttributes { rx_ctx_bits: 33, ..Default::default() });
    assert_eq!(
        refused.err(),
        Some(AddressVectorError::TooManyRxCtxBits { bits: 33, bits_max: 32 })
    );
}

#[test]
fn unknown_flags_are_refused() {
    let flags = AddressVectorFlags::from_bits_retain(1 << 9 | 1 << 59);
    let refused =
        AddressVector::open(AddressVectorAttributes { flags, ..Default::default() }).err();
    assert_eq!(refused, Some(AddressVectorError::UnsupportedFlags { flags: 1 << 9 }));
    assert_eq!(refused.unwrap().errno(), Errno::BADFLAGS);
}

#[test]
fn a_bound_vector_does_not_close() {
    let av = open(AddressVectorAttributes::default());
    av.binds().bind().unwrap();
    assert_eq!(av.close().unwrap_err().errno(), Errno::BUSY);
    av.binds().unbind().unwrap();
    av.close().unwrap();
}

#[test]
fn asynchronous_insertion_reports_errors_then_one_event() {
    let flags = AddressVectorFlags::EVENT;
    let av = open(AddressVectorAttributes { flags, ..Default::default() });
    assert!(av.is_asynchronous());
    let batch = || [Ok(nth(1)), Address::from_bytes(&[0; 16]), Ok(nth(2)), Ok(address("[::]:1"))];
    let early = av.insert_with_events(batch(), 5, Marks::None, |_| ()).unwrap_err();
    assert_eq!((early.errno(), av.len()), (Errno::NOEQ, 0));

    let queue = Arc::new(EventQueue::open(EventQueueAttributes::default()).unwrap());
    av.bind_event_queue(queue.clone(), 42).unwrap();
    let twice = av.bind_event_queue(queue.clone(), 42).unwrap_err();
    assert_eq!((twice, queue.binds().count()), (AddressVectorError::EventQueueBound, 1));
    let mut got = Vec::new();
    let report = |result: Result<FiAddr, _>| got.push(result.ok());
    av.insert_with_events(batch(), 5, Marks::None, report).unwrap();
    assert_eq!(got, [Some(0), None, Some(1), None]);
    assert_eq!(queue.read(), EventRead::ErrorAvailable);
    let errors = [queue.read_error().unwrap(), queue.read_error().unwrap()];
    assert_eq!(errors.each_ref().map(|e| (e.fid, e.context, e.data)), [(42, 5, 1), (42, 5, 3)]);
    assert_eq!(errors[1].error, Errno::ADDRNOTAVAIL);
    let complete = Event::AddressVectorComplete { fid: 42, context: 5, data: 2 };
    assert_eq!(queue.read(), EventRead::Event(complete));
    assert_eq!(queue.read(), EventRead::Empty);
    assert_eq!(queue.close().unwrap_err().errno(), Errno::BUSY);
    // "any events queued on an event queue referencing the AV are left untouched"
    av.insert_with_events([Ok(nth(4))], 6, Marks::None, |_| ()).unwrap();
    av.close().unwrap();
    let complete = Event::AddressVectorComplete { fid: 42, context: 6, data: 1 };
    assert_eq!(queue.read(), EventRead::Event(complete));
    queue.close().unwrap();
}

/// "There will always be one non-error completion event for each insert operation, even if all
/// addresses fail."
#[test]
fn an_insertion_that_fails_whole_completes_too() {
    let flags = AddressVectorFlags::EVENT;
    let av = open(AddressVectorAttributes { flags, ..Default::default() });
    let queue = Arc::new(EventQueue::open(EventQueueAttributes::default()).unwrap());
    av.bind_event_queue(queue.clone(), 42).unwrap();
    let error = AddressVectorError::Unresolved { name: "x".into(), reason: "y".into() };
    let failed = Candidate::Failed { error, count: 3 };
    av.insert_with_events([failed], 7, Marks::None, |_| ()).unwrap();
    for at in 0..3 {
        let error = queue.read_error().unwrap();
        assert_eq!((error.context, error.data, error.error), (7, at, Errno::NODATA));
    }
    let complete = Event::AddressVectorComplete { fid: 42, context: 7, data: 0 };
    assert_eq!(queue.read(), EventRead::Event(complete));
    let nothing: [Address; 0] = [];
    av.insert_with_events(nothing, 8, Marks::None, |_| ()).unwrap();
    let complete = Event::AddressVectorComplete { fid: 42, context: 8, data: 0 };
    assert_eq!(queue.read(), EventRead::Event(complete));
}

/// "Because insertions occur at a pre-determined index, the fi_addr parameter may be NULL."
#[test]
fn a_failed_entry_keeps_its_place_where_nobody_is_told() {
    let addresses =
        || [Ok(nth(0)), Address::from_bytes(&[0; 16]), Ok(address("[::]:1")), Ok(nth(3))];
    for flags in [AddressVectorFlags::empty(), AddressVectorFlags::SYMMETRIC] {
        let av = open(AddressVectorAttributes { flags, ..Default::default() });
        av.insert(&[nth(7), nth(8)]);
        av.remove(&[0]).unwrap();
        assert_eq!(av.insert_each(addresses(), Marks::Places, |_| ()), 2);
        // The lowest that were unused: 0, 2, 3 and 4.
        let found: Vec<Option<Address>> = (0..6).map(|fi_addr| av.get(fi_addr)).collect();
        assert_eq!(found, [Some(nth(0)), Some(nth(8)), None, None, Some(nth(3)), None]);
        assert_eq!(av.len(), 3);
        // The places are for the call alone.
        assert_eq!(fi_addrs(&av.insert(&[nth(9), nth(10), nth(11)])), [2, 3, 5]);
        assert_eq!((av.find(&nth(9)), av.find(&nth(11)), av.len()), (Some(2), Some(5), 6));
        assert_eq!(av.find(&Address::new([0, 0, 0, 1].into(), 0)), None);
        // Where nothing follows there is nothing to keep a place for.
        let capacity = av.capacity();
        let (error, count) = (AddressVectorError::Full { count: 0 }, 100_000);
        assert_eq!(av.insert_each([Candidate::Failed { error, count }], Marks::Places, |_| ()), 0);
        assert_eq!((av.capacity(), av.len()), (capacity, 6));
    }
}

#[test]
fn completions_call_addresses_what_the_user_said() {
    let av = open(AddressVectorAttributes::default());
    let mut ids = |at: usize| 100 + at as FiAddr;
    let batch = [Ok(nth(1)), Address::from_bytes(&[0; 16]), Ok(nth(2))];
    let mut got = Vec::new();
    av.insert_each(batch, Marks::UserIds(&mut ids), |result| got.push(result.ok()));
    assert_eq!(got, [Some(0), None, Some(1)], "the answer is unchanged");
    assert_eq!((av.reported(&nth(1)), av.reported(&nth(2))), (100, 102));
    assert_eq!(av.reported(&nth(3)), FI_ADDR_NOTAVAIL);
    assert_eq!(av.set_user_id(0, 5), Err(AddressVectorError::NoUserIds));
    // What is inserted without one goes by its number, also where another had one.
    av.remove(&[1]).unwrap();
    let changes = av.changes();
    assert_eq!(av.insert_one(nth(2)), Ok(1));
    assert_eq!(av.reported(&nth(2)), 1);
    assert!(av.changes() > changes);
}

#[test]
fn a_vector_with_user_ids_names_nobody_by_itself() {
    let flags = AddressVectorFlags::USER_ID;
    let av = open(AddressVectorAttributes { flags, ..Default::default() });
    av.insert(&[nth(1), nth(2)]);
    assert_eq!((av.reported(&nth(1)), av.find(&nth(1))), (FI_ADDR_NOTAVAIL, Some(0)));
    let changes = av.changes();
    av.set_user_id(0, 77).unwrap();
    assert!(av.changes() > changes, "engines hear of it");
    assert_eq!((av.reported(&nth(1)), av.reported(&nth(2))), (77, FI_ADDR_NOTAVAIL));
    assert_eq!(av.set_user_id(2, 5), Err(AddressVectorError::NotInserted { fi_addr: 2 }));
    av.remove(&[0]).unwrap();
    av.insert_one(nth(1)).unwrap();
    assert_eq!(av.reported(&nth(1)), FI_ADDR_NOTAVAIL, "another insertion has another name");
    let mut ids = |_| 9;
    let mut errors = Vec::new();
    av.insert_each([nth(3)], Marks::UserIds(&mut ids), |result| errors.push(result));
    assert_eq!(errors, [Err(AddressVectorError::UserIdAtInsertion)]);
}

/// Readers run beside a writer that grows the vector and reuses one entry.
/// Every address tells its own number in both halves, so a torn one shows.
#[test]
fn readers_see_whole_addresses_while_the_vector_grows() {
    fn tagged(n: u64) -> Address {
        let bits = u128::from(n) << 64 | u128::from(!n);
        Address::new(std::net::Ipv6Addr::from_bits(bits).into(), n as u16)
    }
    fn assert_whole(address: Address) {
        let std::net::IpAddr::V6(ip) = address.ip() else { panic!("{address} was never inserted") };
        let n = (ip.to_bits() >> 64) as u64;
        assert_eq!((address, ip.to_bits() as u64), (tagged(n), !n));
    }
    let av = open(AddressVectorAttributes::default());
    av.insert_one(tagged(1)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 2..60_000 {
                av.remove(&[0]).unwrap();
                assert_eq!(av.insert_one(tagged(n)), Ok(0));
                av.insert_one(tagged(n)).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = 0;
                while !done.load(Ordering::Acquire) {
                    av.get(0).into_iter().for_each(assert_whole);
                    let last = av.insertions() / 2;
                    av.get(last / 2).into_iter().for_each(assert_whole);
                    assert!(av.removals() >= seen);
                    seen = av.removals();
                }
            });
        }
    });
    assert_eq!(av.get(0), Some(tagged(59_999)));
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u8),
    Remove(u8),
    Find(u8),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..24u8).prop_map(Step::Insert),
        3 => (0..40u8).prop_map(Step::Remove),
        2 => (0..24u8).prop_map(Step::Find),
    ]
}

proptest! {
    /// Every step agrees with a map from number to address, duplicates included.
    #[test]
    fn agrees_with_a_plain_map(steps in proptest::collection::vec(any_step(), 1..300)) {
        let av = open(AddressVectorAttributes::default());
        let mut model: BTreeMap<FiAddr, Address> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Insert(n) => {
                    let lowest = (0..).find(|at| !model.contains_key(at)).unwrap();
                    prop_assert_eq!(av.insert_one(nth(n.into())), Ok(lowest));
                    model.insert(lowest, nth(n.into()));
                }
                Step::Remove(at) => {
                    let known = model.remove(&at.into()).is_some();
                    prop_assert_eq!(av.remove(&[at.into()]).is_ok(), known);
                }
                Step::Find(n) => {
                    let expected = model.iter().find(|(_, a)| **a == nth(n.into())).map(|(at, _)| *at);
                    prop_assert_eq!(av.find(&nth(n.into())), expected);
                }
            }
            prop_assert_eq!(av.len(), model.len());
            for at in 0..48 {
                prop_assert_eq!(av.get(at), model.get(&at).copied());
            }
        }
    }
}

#[test]
#[should_panic = "at most 32"]
fn no_address_has_more_bits_for_contexts_than_a_vector() {
    fi_rx_addr(1, 0, 33);
}

#[test]
#[should_panic = "does not fit"]
fn no_index_is_cut_to_the_bits_that_there_are() {
    fi_rx_addr(1, 16, 4);
}
