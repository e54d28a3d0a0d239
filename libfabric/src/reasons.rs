//! Why what failed has failed: the words behind a `prov_errno`. Reference: fi_cq(3), `fi_cq_strerror`;
//! fi_eq(3), `fi_eq_strerror`.
//!
//! Several errors may have been read before somebody asks for the words of one: by several threads, or one
//! after the other. So each reason of the last ones has a number of its own, whose lower half is the error's.

use std::{
    collections::VecDeque,
    ffi::{c_char, c_int},
};

use kestrel_core::error::Errno;

use crate::words;

/// How many reasons are kept.
const KEPT: usize = 64;

/// Where in a `prov_errno` the reason's number begins.
const SHIFT: u32 = 16;

/// The reasons that a queue has told last.
#[derive(Default)]
pub struct Reasons {
    /// The number of the last one. It comes round again long after what it named is not kept any more.
    last: u16,
    /// Oldest first.
    kept: VecDeque<(c_int, String)>,
}

impl Reasons {
    /// Keeps the reason of an error: the `prov_errno` by which it is found. One without words is the error
    /// itself; of many for the same reason there is one.
    pub fn keep(&mut self, errno: Errno, reason: &str) -> c_int {
        if reason.is_empty() {
            return errno.0;
        }
        let is_it =
            |(number, kept): &&(c_int, String)| error_of(*number) == errno && kept == reason;
        if let Some(&(number, _)) = self.kept.back().filter(|back| is_it(back)) {
            return number;
        }
        // Positive, and never the error's number alone.
        self.last = self.last % (c_int::MAX >> SHIFT) as u16 + 1;
        let number = c_int::from(self.last) << SHIFT | errno.0;
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((number, reason.to_owned()));
        number
    }

    /// Tells the words behind a `prov_errno`: the reason, or what the error means. Of who passes the error's
    /// own number, the last reason for that.
    ///
    /// # Safety
    /// As [`words::tell`].
    pub unsafe fn tell(&self, number: c_int, buffer: *mut c_char, length: usize) -> *const c_char {
        let is_it = |kept: c_int| kept == number || error_of(kept).0 == number;
        let kept = self.kept.iter().rev().find(|&&(kept, _)| is_it(kept));
        let text = kept.map_or(error_of(number).text(), |(_, reason)| reason);
        // SAFETY: the caller vouches for the buffer.
        unsafe { words::tell(text, buffer, length) }
    }
}

fn error_of(number: c_int) -> Errno {
    Errno(number & ((1 << SHIFT) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(reasons: &Reasons, number: c_int) -> String {
        let mut buffer = [0 as c_char; 64];
        // SAFETY: the buffer has that length, and holds text that ends with a zero byte.
        unsafe {
            reasons.tell(number, buffer.as_mut_ptr(), buffer.len());
            std::ffi::CStr::from_ptr(buffer.as_ptr()).to_str().unwrap().to_owned()
        }
    }

    #[test]
    fn each_of_the_last_reasons_is_found() {
        let mut reasons = Reasons::default();
        let numbers: Vec<_> = (0..100_000)
            .map(|peer| reasons.keep(Errno::CONNRESET, &format!("peer {peer} is gone")))
            .collect();
        for (peer, &number) in numbers.iter().enumerate() {
            assert!(number > 0 && error_of(number) == Errno::CONNRESET);
            if peer >= numbers.len() - KEPT {
                assert_eq!(words(&reasons, number), format!("peer {peer} is gone"));
            }
        }
        assert_eq!(words(&reasons, Errno::CONNRESET.0), "peer 99999 is gone");
        // What is not kept is told in general.
        assert_eq!(words(&reasons, Errno::TRUNC.0), Errno::TRUNC.text());
        let (new, old) = (numbers[numbers.len() - 1], numbers[numbers.len() - 1 - KEPT]);
        assert_ne!(new, old);
        assert_eq!(words(&reasons, old), Errno::CONNRESET.text());
    }

    #[test]
    fn one_reason_of_many_errors_is_kept_once() {
        let mut reasons = Reasons::default();
        let first = reasons.keep(Errno::TRUNC, "one");
        let gone = reasons.keep(Errno::CONNRESET, "two");
        for _ in 0..2 * KEPT {
            assert_eq!(reasons.keep(Errno::CONNRESET, "two"), gone);
        }
        assert_ne!(reasons.keep(Errno::CONNABORTED, "two"), gone);
        assert_eq!(words(&reasons, first), "one");
        assert_eq!(reasons.keep(Errno::CANCELED, ""), Errno::CANCELED.0);
    }
}
