//! Authorization keys, and addresses that are meant by them.

use super::*;
use crate::auth_key::ONLY_KEY;

fn keyed(flags: AddressVectorFlags) -> Arc<AddressVector> {
    Arc::new(open(AddressVectorAttributes { flags, auth_keys: true, ..Default::default() }))
}

/// Inserts an address for the key behind a handle.
fn insert(
    av: &AddressVector,
    address: Address,
    handle: FiAddr,
) -> Result<FiAddr, AddressVectorError> {
    let (mut handle_at, mut results) = (|_| handle, Vec::new());
    av.insert_each([address], Marks::AuthKeys(&mut handle_at), |result| results.push(result));
    results.remove(0)
}

#[test]
fn keys_have_handles_that_are_no_address() {
    let av = keyed(AddressVectorFlags::empty());
    let (one, two) = (av.insert_auth_key(b"one").unwrap(), av.insert_auth_key(b"two").unwrap());
    assert_eq!(av.insert_auth_key(b"one"), Ok(one), "one that is there already");
    assert!(one != two && one != FI_ADDR_UNSPEC && two != FI_ADDR_UNSPEC);
    for handle in [one, two] {
        assert_eq!((av.get(handle), av.remove(&[handle]).is_err()), (None, true));
    }
    for bytes in [vec![], vec![0; 513]] {
        let size = bytes.len();
        let refused = AddressVectorError::AuthKeySize { size, size_max: 512 };
        assert_eq!(av.insert_auth_key(&bytes), Err(refused));
    }
    av.insert_auth_key(&[0; 512]).unwrap();
    // No number is given twice: what was known of a key that is gone is nobody's.
    av.remove_auth_keys(&[one]).unwrap();
    assert_ne!(av.insert_auth_key(b"one"), Ok(one));
    let plain = open(AddressVectorAttributes::default());
    assert_eq!(plain.insert_auth_key(b"one"), Err(AddressVectorError::NoAuthKeys));
    assert_eq!(insert(&plain, nth(1), one), Err(AddressVectorError::NoAuthKeys));
}

#[test]
fn an_address_is_meant_by_a_key() {
    for flags in [AddressVectorFlags::empty(), AddressVectorFlags::SYMMETRIC] {
        let av = keyed(flags);
        let handles = [b"one", b"two"].map(|key| av.insert_auth_key(key).unwrap());
        let numbers = handles.map(|handle| av.lookup_auth_key(handle).unwrap().number);
        assert_eq!(insert(&av, nth(1), handles[0]), Ok(0));
        assert_eq!(av.insert_one(nth(1)), Ok(1));
        assert_eq!(insert(&av, nth(1), handles[1]), Ok(2));
        let missing = AddressVectorError::NotInserted { fi_addr: 5 };
        assert_eq!(insert(&av, nth(1), 5), Err(missing), "an address is no handle");
        for (fi_addr, key) in [(0, numbers[0]), (1, ONLY_KEY), (2, numbers[1])] {
            assert_eq!(av.key_of(fi_addr), Some(key));
            assert_eq!(av.names().reported_by(&nth(1), key), fi_addr);
        }
        assert_eq!(av.lookup_auth_key(2).unwrap().bytes(), b"two");
        assert!(av.lookup_auth_key(1).is_err(), "it has none");
        // Its number may be another address's later, which has no key of its own accord.
        av.remove(&[0]).unwrap();
        assert_eq!(
            (av.key_of(0), av.names().reported_by(&nth(1), numbers[0])),
            (None, FI_ADDR_NOTAVAIL)
        );
        assert_eq!((av.insert_one(nth(2)), av.key_of(0)), (Ok(0), Some(ONLY_KEY)));
        av.remove_auth_keys(&[handles[1]]).unwrap();
        assert!(av.lookup_auth_key(2).is_err() && av.get(2).is_some(), "the address stays");
    }
}

#[test]
fn keys_that_are_held_stay() {
    let av = keyed(AddressVectorFlags::empty());
    let count = |count| AddressVectorError::AuthKeyCount { count, count_max: 64 };
    assert_eq!(av.hold_auth_keys().err(), Some(count(0)));
    let one = av.insert_auth_key(b"one").unwrap();
    let (first, second) = (av.hold_auth_keys().unwrap(), av.hold_auth_keys().unwrap());
    let late = av.insert_auth_key(b"late").unwrap();
    let busy = AddressVectorError::AuthKeyInUse { fi_addr: one, endpoints: 2 };
    assert_eq!(av.remove_auth_keys(&[one, late]), Err(busy), "the other one goes all the same");
    assert!(av.lookup_auth_key(late).is_err());
    drop(first);
    assert!(av.remove_auth_keys(&[one]).is_err());
    drop(second);
    assert_eq!(av.remove_auth_keys(&[one]), Ok(()));
}

#[test]
fn user_ids_are_given_later() {
    let mut ids = |_| 9;
    let mut results = Vec::new();
    let av = keyed(AddressVectorFlags::empty());
    av.insert_each([nth(3)], Marks::UserIds(&mut ids), |result| results.push(result));
    assert_eq!(results, [Err(AddressVectorError::UserIdAtInsertion)]);
    let av = keyed(AddressVectorFlags::USER_ID);
    let handle = av.insert_auth_key(b"one").unwrap();
    let number = av.lookup_auth_key(handle).unwrap().number;
    assert_eq!(insert(&av, nth(1), handle), Ok(0));
    assert_eq!(av.names().reported_by(&nth(1), number), FI_ADDR_NOTAVAIL);
    av.set_user_id(0, 71).unwrap();
    assert_eq!(av.names().reported_by(&nth(1), number), 71);
    // The same of the key, for error events.
    assert_eq!(av.reported_key(number), FI_ADDR_NOTAVAIL);
    av.set_auth_key_id(handle, 72).unwrap();
    assert_eq!(av.reported_key(number), 72);
    let missing = AddressVectorError::NotInserted { fi_addr: 0 };
    assert_eq!(av.set_auth_key_id(0, 73), Err(missing), "it is no key");
    let unnamed = keyed(AddressVectorFlags::empty());
    let handle = unnamed.insert_auth_key(b"one").unwrap();
    assert_eq!(unnamed.set_auth_key_id(handle, 72), Err(AddressVectorError::NoUserIds));
    assert_eq!(unnamed.reported_key(unnamed.lookup_auth_key(handle).unwrap().number), handle);
}
