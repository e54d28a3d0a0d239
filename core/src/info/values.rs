//! The enumerations of fi_getinfo(3), fi_domain(3) and fi_cq(3), with libfabric's values.

use std::fmt;

use crate::error::{Errno, HasErrno};

/// A number that names no value of an enumeration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value} is not a value of {kind}")]
pub struct UnknownValue {
    /// The enumeration.
    pub kind: &'static str,
    /// The number.
    pub value: u32,
}

impl HasErrno for UnknownValue {
    fn errno(&self) -> Errno {
        Errno::INVAL
    }
}

macro_rules! values {
    ($(#[$doc:meta])* $kind:ident, $($variant:ident = $value:literal, $name:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $kind {
            #[default]
            $(#[doc = concat!("`", $name, "`")] $variant = $value,)*
        }

        impl $kind {
            /// libfabric's number.
            pub const fn value(self) -> u32 {
                self as u32
            }

            /// libfabric's name, for messages.
            pub const fn name(self) -> &'static str {
                match self { $($kind::$variant => $name,)* }
            }
        }

        impl TryFrom<u32> for $kind {
            type Error = UnknownValue;

            fn try_from(value: u32) -> Result<Self, UnknownValue> {
                match value {
                    $($value => Ok($kind::$variant),)*
                    _ => Err(UnknownValue { kind: stringify!($kind), value }),
                }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

values! {
    /// What service an endpoint gives. Reference: `enum fi_ep_type`.
    EndpointType,
    Unspec = 0, "FI_EP_UNSPEC";
    Msg = 1, "FI_EP_MSG";
    Dgram = 2, "FI_EP_DGRAM";
    Rdm = 3, "FI_EP_RDM";
    SockStream = 4, "FI_EP_SOCK_STREAM";
    SockDgram = 5, "FI_EP_SOCK_DGRAM";
}

values! {
    /// What the application serialises itself. Reference: `enum fi_threading`.
    Threading,
    Unspec = 0, "FI_THREAD_UNSPEC";
    Safe = 1, "FI_THREAD_SAFE";
    Fid = 2, "FI_THREAD_FID";
    Domain = 3, "FI_THREAD_DOMAIN";
    Completion = 4, "FI_THREAD_COMPLETION";
    Endpoint = 5, "FI_THREAD_ENDPOINT";
}

values! {
    /// Whose threads make progress. Reference: `enum fi_progress`.
    Progress,
    Unspec = 0, "FI_PROGRESS_UNSPEC";
    Auto = 1, "FI_PROGRESS_AUTO";
    Manual = 2, "FI_PROGRESS_MANUAL";
}

values! {
    /// Whether queues are protected from overrun. Reference: `enum fi_resource_mgmt`.
    ResourceManagement,
    Unspec = 0, "FI_RM_UNSPEC";
    Disabled = 1, "FI_RM_DISABLED";
    Enabled = 2, "FI_RM_ENABLED";
}

values! {
    /// How an address vector's numbers are used. Reference: `enum fi_av_type`.
    AddressVectorKind,
    Unspec = 0, "FI_AV_UNSPEC";
    Map = 1, "FI_AV_MAP";
    Table = 2, "FI_AV_TABLE";
}

values! {
    /// How much a completion entry tells. Reference: `enum fi_cq_format`.
    CompletionFormat,
    Unspec = 0, "FI_CQ_FORMAT_UNSPEC";
    Context = 1, "FI_CQ_FORMAT_CONTEXT";
    Msg = 2, "FI_CQ_FORMAT_MSG";
    Data = 3, "FI_CQ_FORMAT_DATA";
    Tagged = 4, "FI_CQ_FORMAT_TAGGED";
}

impl Threading {
    /// How much the application serialises: the higher, the less is left to
    /// the provider. `Unspec` asks for nothing, so anything satisfies it.
    pub(super) const fn leniency(self) -> u32 {
        match self {
            Threading::Safe => 1,
            Threading::Fid => 2,
            Threading::Endpoint => 3,
            Threading::Completion => 4,
            Threading::Domain => 5,
            Threading::Unspec => 6,
        }
    }
}

impl Progress {
    /// How much of the progress is left to the application.
    pub(super) const fn leniency(self) -> u32 {
        match self {
            Progress::Auto => 1,
            Progress::Manual => 2,
            Progress::Unspec => 3,
        }
    }
}

impl ResourceManagement {
    /// How little is protected.
    pub(super) const fn leniency(self) -> u32 {
        match self {
            ResourceManagement::Enabled => 1,
            ResourceManagement::Disabled => 2,
            ResourceManagement::Unspec => 3,
        }
    }
}

/// A version of libfabric's interface: what `FI_VERSION(major, minor)` makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiVersion(pub u32);

impl ApiVersion {
    /// The version that native users of the crates speak.
    pub const NATIVE: ApiVersion = ApiVersion::new(1, 17);

    /// What `FI_VERSION(major, minor)` makes.
    pub const fn new(major: u16, minor: u16) -> Self {
        ApiVersion((major as u32) << 16 | minor as u32)
    }

    /// What `FI_MAJOR(version)` is.
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// What `FI_MINOR(version)` is.
    pub const fn minor(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip_and_unknown_ones_are_named() {
        for value in 0..6 {
            assert_eq!(EndpointType::try_from(value).unwrap().value(), value);
            assert_eq!(Threading::try_from(value).unwrap().value(), value);
        }
        let unknown = UnknownValue { kind: "Progress", value: 3 };
        assert_eq!(Progress::try_from(3), Err(unknown));
        assert_eq!(unknown.to_string(), "3 is not a value of Progress");
        // Where kestrel's order and libfabric's could differ unnoticed:
        assert_eq!((Threading::Domain.value(), Threading::Endpoint.value()), (3, 5));
        assert_eq!((AddressVectorKind::Map.value(), ResourceManagement::Enabled.value()), (1, 2));
        assert_eq!((EndpointType::Rdm.value(), CompletionFormat::Tagged.value()), (3, 4));
    }

    #[test]
    fn versions_order_as_libfabric_compares_them() {
        assert_eq!(ApiVersion::new(1, 17).0, 0x1_0011);
        assert!(ApiVersion::new(2, 0) > ApiVersion::new(1, 22));
        assert_eq!(ApiVersion::new(2, 6).to_string(), "2.6");
    }
}
