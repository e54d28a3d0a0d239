//! Where addresses lie: in entries, in runs, in memory that is shared. None of it shows.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::sync::atomic::AtomicU64;

use super::*;

/// Memory that two vectors share, in one process.
struct Memory {
    words: Vec<AtomicU64>,
    lock: std::sync::Mutex<()>,
    /// Whether somebody else keeps it.
    kept: AtomicBool,
}

struct Held<'a>(#[allow(dead_code, reason = "held, not read")] MutexGuard<'a, ()>);

impl SharedLock for Held<'_> {}

impl SharedMemory for Memory {
    fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn lock(&self) -> Result<Box<dyn SharedLock + '_>, String> {
        if self.kept.load(Ordering::Relaxed) {
            return Err("by somebody".into());
        }
        Ok(Box::new(Held(self.lock.lock().unwrap())))
    }
}

fn memory(count: usize) -> Arc<Memory> {
    let words = (0..shared_bytes(count) / 8).map(|_| AtomicU64::new(0)).collect();
    Arc::new(Memory { words, lock: Default::default(), kept: AtomicBool::new(false) })
}

fn share(memory: &Arc<Memory>, flags: AddressVectorFlags) -> AddressVector {
    let attributes = AddressVectorAttributes { flags, ..Default::default() };
    AddressVector::open_shared(attributes, memory.clone()).unwrap()
}

fn symmetric() -> AddressVector {
    let flags = AddressVectorFlags::SYMMETRIC;
    open(AddressVectorAttributes { flags, ..Default::default() })
}

#[test]
fn a_shared_address_has_one_number() {
    let memory = memory(100);
    let [ours, theirs] = [(); 2].map(|()| share(&memory, AddressVectorFlags::empty()));
    assert_eq!(fi_addrs(&ours.insert(&[nth(1), nth(2)])), [0, 1]);
    assert_eq!((theirs.get(1), theirs.len()), (Some(nth(2)), 2));
    assert_eq!((theirs.find(&nth(2)), theirs.find(&nth(3))), (Some(1), None));
    let before = ours.changes_everywhere();
    assert_eq!(theirs.insert_one(nth(3)), Ok(2));
    let listed = |vector: &AddressVector| {
        let numbers = vector.shared_numbers().unwrap();
        [0, 1, 2, 99].map(|at: usize| numbers[at].load(Ordering::Relaxed))
    };
    assert_eq!(listed(&ours), [0, 1, 2, 0]);
    assert_ne!(ours.changes_everywhere(), before);
    assert_eq!(ours.find(&nth(3)), Some(2));
    let (removals, version) = (theirs.removals_everywhere(), theirs.version(0));
    ours.remove(&[0, 1]).unwrap();
    assert_eq!(listed(&theirs), [FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL, 2, 0]);
    assert_ne!(theirs.removals_everywhere(), removals);
    assert_eq!((theirs.get(0), theirs.find(&nth(1)), theirs.len()), (None, None, 1));
    assert_eq!(fi_addrs(&theirs.insert(&[nth(2), nth(1), nth(4)])), [0, 1, 3]);
    assert_eq!(
        (ours.find(&nth(1)), ours.find(&nth(2)), ours.find(&nth(4))),
        (Some(1), Some(0), Some(3))
    );
    assert_ne!(ours.version(0), version);
    assert_eq!((ours.changes(), ours.removals()), (LOOK_EACH_TIME, LOOK_EACH_TIME));
}

/// A writer that dies between a removal and its count leaves a number that the next one gives away:
/// what others have cached for it is of no use any more.
#[test]
fn a_number_that_was_used_before_is_another() {
    let memory = memory(10);
    let [ours, theirs] = [(); 2].map(|()| share(&memory, AddressVectorFlags::empty()));
    assert_eq!(fi_addrs(&ours.insert(&[nth(1), nth(2)])), [0, 1]);
    let before = theirs.removals_everywhere();
    // As far as it came: the lowest vacant number, and the entry.
    memory.words[5].store(0, Ordering::Relaxed);
    slot::vacate(memory.words[16..20].try_into().unwrap());
    assert_eq!(ours.insert_one(nth(3)), Ok(0));
    assert_ne!(theirs.removals_everywhere(), before);
    assert_eq!((theirs.get(0), theirs.find(&nth(1))), (Some(nth(3)), None));
}

/// The same for one that dies between an insertion and its end: who knows the numbers has found it.
#[test]
fn a_number_that_was_seen_before_is_another() {
    let memory = memory(10);
    let [ours, theirs] = [(); 2].map(|()| share(&memory, AddressVectorFlags::empty()));
    assert_eq!(ours.insert_one(nth(1)), Ok(0));
    let before = theirs.removals_everywhere();
    // As far as it came: the entry, and not how many are used.
    memory.words[1].store(0, Ordering::Relaxed);
    assert_eq!(theirs.get(0), Some(nth(1)));
    assert_eq!(ours.insert_one(nth(2)), Ok(0));
    assert_ne!(theirs.removals_everywhere(), before);
    assert_eq!(theirs.get(0), Some(nth(2)));
}

#[test]
fn user_ids_of_a_shared_vector_are_a_processs_own() {
    let memory = memory(10);
    let [ours, theirs] = [(); 2].map(|()| share(&memory, AddressVectorFlags::USER_ID));
    ours.insert_one(nth(1)).unwrap();
    let before = ours.changes_everywhere();
    ours.set_user_id(0, 55).unwrap();
    assert_ne!(ours.changes_everywhere(), before);
    assert_eq!((ours.reported(&nth(1)), theirs.reported(&nth(1))), (55, FI_ADDR_NOTAVAIL));
    // Somebody else puts another address there.
    theirs.remove(&[0]).unwrap();
    theirs.insert_one(nth(2)).unwrap();
    assert_eq!(ours.reported(&nth(2)), FI_ADDR_NOTAVAIL);
}

#[test]
fn a_read_only_vector_is_read_alone() {
    let memory = memory(10);
    let readable = share(&memory, AddressVectorFlags::READ);
    let av = share(&memory, AddressVectorFlags::empty());
    av.insert_one(nth(1)).unwrap();
    assert_eq!(readable.get(0), Some(nth(1)));
    assert_eq!(readable.insert_one(nth(2)), Err(AddressVectorError::ReadOnly));
    assert_eq!(readable.remove(&[0]), Err(AddressVectorError::ReadOnly));
    assert_eq!(readable.insert(&[nth(2), nth(3)]).count(), 0);
    assert_eq!(AddressVectorError::ReadOnly.errno(), Errno::ACCES);
    let flags = AddressVectorFlags::READ;
    let refused = AddressVector::open(AddressVectorAttributes { flags, ..Default::default() });
    assert_eq!(refused.err(), Some(AddressVectorError::ReadOnlyWithoutName));
}

/// However an address is written, it has one name and one key.
#[test]
fn a_symmetric_vector_names_mapped_addresses() {
    let flags = AddressVectorFlags::SYMMETRIC;
    let av = open(AddressVectorAttributes { flags, auth_keys: true, ..Default::default() });
    let (plain, mapped) = (address("10.0.0.1:5"), address("[::ffff:10.0.0.1]:5"));
    let handles = [b"one", b"two"].map(|key| av.insert_auth_key(key).unwrap());
    let (mut handle_at, mut inserted) = (|at: usize| handles[at], Vec::new());
    let marks = Marks::AuthKeys(&mut handle_at);
    av.insert_each([mapped, mapped], marks, |result| inserted.push(result));
    assert_eq!(inserted, [Ok(0), Ok(1)]);
    for (fi_addr, handle) in (0..).zip(handles) {
        let number = av.lookup_auth_key(handle).unwrap().number;
        assert_eq!(av.names().reported_by(&plain, number), fi_addr);
        assert_eq!(av.find(&plain), Some(0));
    }
    let av = symmetric();
    let mut id = |_| 70;
    av.insert_each([mapped], Marks::UserIds(&mut id), |result| assert_eq!(result, Ok(0)));
    assert_eq!((av.reported(&plain), av.reported(&mapped)), (70, 70));
}

#[test]
fn a_shared_vector_that_is_kept_or_full_says_so() {
    let memory = memory(2);
    let av = share(&memory, AddressVectorFlags::empty());
    memory.kept.store(true, Ordering::Relaxed);
    let kept = AddressVectorError::Locked { reason: "by somebody".into() };
    assert_eq!((av.insert_one(nth(1)), av.remove(&[0])), (Err(kept.clone()), Err(kept)));
    memory.kept.store(false, Ordering::Relaxed);
    assert_eq!(av.insert(&[nth(1), nth(2)]).count(), 2);
    assert_eq!(av.insert_one(nth(3)), Err(AddressVectorError::Full { count: 2 }));
}

/// A process that shares the memory writes anything, anywhere.
#[test]
fn a_lying_process_hurts_the_shared_vector_alone() {
    let memory = memory(64);
    let av = share(&memory, AddressVectorFlags::empty());
    let mut state = 1_u64;
    for round in 0..20_000 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (state >> 33) as usize % memory.words.len();
        let value = [state, u64::MAX, 0, state >> 50, 1 << 32][round % 5];
        memory.words[at].store(value, Ordering::Relaxed);
        av.insert_one(nth(round as u32)).ok();
        av.remove(&[state % 80]).ok();
        av.get(state % 80);
        av.find(&nth(round as u32 / 2));
        assert!(av.len() <= 64 && av.capacity() == 64);
    }
    memory.words[0].store(12345, Ordering::Relaxed);
    let foreign = AddressVector::open_shared(Default::default(), memory.clone()).err();
    assert_eq!(foreign, Some(AddressVectorError::ForeignMemory { words: memory.words.len() }));
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u8),
    Range(u8, u8, u8),
    Remove(u8),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..60u8).prop_map(Step::Insert),
        2 => (0..60u8, 0..4u8, 0..5u8).prop_map(|(base, nodes, services)| Step::Range(base, nodes, services)),
        3 => (0..60u8).prop_map(Step::Remove),
    ]
}

/// Addresses that lie close to each other: nodes of four services.
fn close(n: u8) -> Address {
    Address::new(std::net::Ipv4Addr::new(10, 0, 0, n / 4).into(), 5000 + u16::from(n % 4))
}

proptest! {
    /// Runs, gaps in them and entries beside them agree with a map from number to address.
    #[test]
    fn a_symmetric_vector_agrees_with_a_plain_map(steps in proptest::collection::vec(any_step(), 1..80)) {
        let av = symmetric();
        let mut model: BTreeMap<FiAddr, Address> = BTreeMap::new();
        let lowest = |model: &BTreeMap<FiAddr, Address>| (0..).find(|at| !model.contains_key(at)).unwrap();
        for step in steps {
            match step {
                Step::Insert(n) => {
                    let at = lowest(&model);
                    prop_assert_eq!(av.insert_one(close(n)), Ok(at));
                    model.insert(at, close(n));
                }
                Step::Range(base, nodes, services) => {
                    let range = SymmetricRange::new(close(base), nodes.into(), services.into()).unwrap();
                    let mut got = Vec::new();
                    av.insert_each([range], Marks::None, |result| got.push(result.unwrap()));
                    let mut expected = Vec::new();
                    for address in range.addresses() {
                        expected.push(lowest(&model));
                        model.insert(lowest(&model), address);
                    }
                    prop_assert_eq!(got, expected);
                }
                Step::Remove(at) => {
                    let known = model.remove(&at.into()).is_some();
                    let version = av.version(at.into());
                    prop_assert_eq!(av.remove(&[at.into()]).is_ok(), known);
                    prop_assert_eq!((version.is_some(), av.version(at.into())), (known, None));
                }
            }
            prop_assert_eq!(av.len(), model.len());
            for at in 0..70 {
                prop_assert_eq!(av.get(at), model.get(&at).copied());
            }
            for n in 0..80 {
                let expected = model.iter().find(|(_, a)| **a == close(n)).map(|(at, _)| *at);
                prop_assert_eq!(av.find(&close(n)), expected);
            }
        }
    }
}
