//! What devices refuse where a queue pair is made, and what is tried instead.

use super::queue_pair::CREATE_QUEUE_PAIR;
use crate::verbs::{Role, VerbsError};

/// Lengths of inline requests that devices grant, or nearly: 101 bytes (irdma), 96 (bnxt_re), 48 (X722). Units:
/// bytes.
const INLINE_STEPS: [u32; 6] = [128, 100, 96, 64, 48, 32];

/// Makes a queue pair that takes so many bytes inline, or as many as can be had: devices grant different
/// lengths, and refuse instead of saying which. Returns what it was made with.
pub(super) fn with_inline<T>(
    wanted: u32,
    make: impl Fn(u32) -> Result<T, VerbsError>,
) -> Result<(T, u32), VerbsError> {
    let mut inline = wanted;
    loop {
        match make(inline) {
            Err(VerbsError::Call { call: CREATE_QUEUE_PAIR, source, .. })
                if inline > 0 && source.raw_os_error() == Some(libc::EINVAL) =>
            {
                inline = INLINE_STEPS.into_iter().find(|step| *step < inline).unwrap_or(0);
            }
            made => return made.map(|made| (made, inline)),
        }
    }
}

/// No device says beforehand which kinds of queue pairs it has.
pub(super) fn refused_as(role: Role, error: VerbsError) -> VerbsError {
    match error {
        VerbsError::Call { device, call: CREATE_QUEUE_PAIR, source }
            if matches!(role, Role::Datagrams { .. })
                && matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) =>
        {
            VerbsError::NoDatagrams { device, source }
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn refused(call: &'static str, number: i32) -> VerbsError {
        VerbsError::of_call("mlx5_0", call, io::Error::from_raw_os_error(number))
    }

    #[test]
    fn what_a_device_grants_is_found() {
        let up_to = |most: u32| {
            move |inline| {
                if inline <= most {
                    Ok(inline)
                } else {
                    Err(refused(CREATE_QUEUE_PAIR, libc::EINVAL))
                }
            }
        };
        let granted = |wanted, most| with_inline(wanted, up_to(most)).unwrap();
        assert_eq!(granted(220, 256), (220, 220));
        assert_eq!(granted(220, 101), (100, 100));
        assert_eq!(granted(220, 60), (48, 48));
        assert_eq!(granted(32, 32), (32, 32));
        assert_eq!(granted(32, 31), (0, 0));
        assert_eq!(granted(220, 0), (0, 0));
    }

    #[test]
    fn a_device_without_datagrams_is_said_to_have_none() {
        let told = |role, number| refused_as(role, refused(CREATE_QUEUE_PAIR, number)).to_string();
        let datagrams = Role::Datagrams { key: 1 };
        for number in [libc::EINVAL, libc::EOPNOTSUPP] {
            assert!(told(datagrams, number).contains("(UD)"));
            assert!(told(Role::Sends, number).contains(CREATE_QUEUE_PAIR));
        }
        assert!(told(datagrams, libc::ENOMEM).contains(CREATE_QUEUE_PAIR));
    }

    #[test]
    fn what_is_not_for_the_length_is_an_error_at_once() {
        let others = [
            (CREATE_QUEUE_PAIR, libc::ENODEV),
            ("ibv_modify_qp (INIT)", libc::EINVAL),
            ("ibv_modify_qp (RTR)", libc::EINVAL),
        ];
        for (call, number) in others {
            let tries = std::cell::Cell::new(0);
            let made = with_inline(220, |_| {
                tries.set(tries.get() + 1);
                Err::<(), _>(refused(call, number))
            });
            assert!(made.is_err() && tries.get() == 1, "{call}: {} tries", tries.get());
        }
        // Whatever the length.
        assert!(
            with_inline(220, |_| Err::<(), _>(refused(CREATE_QUEUE_PAIR, libc::EINVAL))).is_err()
        );
    }
}
