//! Error numbers: what every error of kestrel maps to, with libfabric's values.
//!
//! Each object has an error enum of its own, beside the object; all of them, and what wraps
//! one to give buffers back, answer [`HasErrno::errno`], so that a caller (the C door above
//! all) can report the number that the manual pages name. [`Cause`] is such an error where
//! nobody decides by it any more: its number and its words.

use std::{fmt, io};

/// An error number as fi_errno(3) defines it. Always positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($value);)*

            /// What the number means, in words.
            pub const fn text(self) -> &'static str {
                match self.0 { $($value => $text,)* _ => "Unknown error" }
            }

            /// The symbol, as in `FI_EAGAIN`.
            pub const fn name(self) -> &'static str {
                match self.0 { $($value => concat!("FI_E", stringify!($name)),)* _ => "FI_EUNKNOWN" }
            }
        }
    };
}

errnos! {
    PERM = 1, "Operation not permitted";
    NOENT = 2, "No such file or directory";
    INTR = 4, "Interrupted system call";
    IO = 5, "I/O error";
    TOOBIG = 7, "Argument list too long";
    BADF = 9, "Bad file number";
    AGAIN = 11, "Try again";
    NOMEM = 12, "Out of memory";
    ACCES = 13, "Permission denied";
    FAULT = 14, "Bad address";
    BUSY = 16, "Device or resource busy";
    NODEV = 19, "No such device";
    INVAL = 22, "Invalid argument";
    MFILE = 24, "Too many open files";
    NOSPC = 28, "No space left on device";
    NOSYS = 38, "Function not implemented";
    NOMSG = 42, "No message of desired type";
    NODATA = 61, "No data available";
    OVERFLOW = 75, "Value too large for defined data type";
    MSGSIZE = 90, "Message too long";
    NOPROTOOPT = 92, "Protocol not available";
    OPNOTSUPP = 95, "Operation not supported on transport endpoint";
    ADDRINUSE = 98, "Address already in use";
    ADDRNOTAVAIL = 99, "Cannot assign requested address";
    NETDOWN = 100, "Network is down";
    NETUNREACH = 101, "Network is unreachable";
    CONNABORTED = 103, "Software caused connection abort";
    CONNRESET = 104, "Connection reset by peer";
    NOBUFS = 105, "No buffer space available";
    ISCONN = 106, "Transport endpoint is already connected";
    NOTCONN = 107, "Transport endpoint is not connected";
    SHUTDOWN = 108, "Cannot send after transport endpoint shutdown";
    TIMEDOUT = 110, "Connection timed out";
    CONNREFUSED = 111, "Connection refused";
    HOSTDOWN = 112, "Host is down";
    HOSTUNREACH = 113, "No route to host";
    ALREADY = 114, "Operation already in progress";
    INPROGRESS = 115, "Operation now in progress";
    REMOTEIO = 121, "Remote I/O error";
    CANCELED = 125, "Operation Canceled";
    KEYREJECTED = 129, "Key was rejected by service";
    OTHER = 256, "Unspecified error";
    TOOSMALL = 257, "Provided buffer is too small";
    OPBADSTATE = 258, "Operation not permitted in current state";
    AVAIL = 259, "Error available";
    BADFLAGS = 260, "Flags not supported";
    NOEQ = 261, "Missing or unavailable event queue";
    DOMAIN = 262, "Invalid resource domain";
    NOCQ = 263, "Missing or unavailable completion queue";
    TRUNC = 265, "Truncation error";
    NOKEY = 266, "Required key not available";
    NOAV = 267, "Missing or unavailable address vector";
    OVERRUN = 268, "Queue has been overrun";
    NORX = 269, "Receiver not ready, no receive buffers available";
    NOMR = 270, "No more memory registrations";
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text())
    }
}

/// Every error that kestrel's calls return maps to one error number of fi_errno(3).
pub trait HasErrno {
    /// The positive error number that the manual pages name for this error.
    fn errno(&self) -> Errno;
}

impl HasErrno for io::Error {
    /// The system's number, or FI_EIO where it gave none.
    fn errno(&self) -> Errno {
        Errno(self.raw_os_error().unwrap_or(Errno::IO.0))
    }
}

/// Why something failed, in a number and in words: a peer that cannot be reached, a message that was
/// cut, an operation that was canceled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Cause {
    /// The number for the error completion.
    pub errno: Errno,
    /// The reason in words, for the log and `strerror`.
    pub reason: String,
}

impl Cause {
    /// What `error` says of itself.
    pub fn of(error: &(impl HasErrno + fmt::Display)) -> Cause {
        Cause { errno: error.errno(), reason: error.to_string() }
    }
}

impl HasErrno for Cause {
    fn errno(&self) -> Errno {
        self.errno
    }
}
