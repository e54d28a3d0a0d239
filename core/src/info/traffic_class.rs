//! Traffic classes. Reference: fi_endpoint(3), "Traffic Class (tclass)".

/// Set in a class that is a DSCP value (`FI_TC_DSCP`).
const DSCP: u32 = 0x100;

/// `FI_TC_UNSPEC`.
const UNSPECIFIED: u32 = 0;
/// `FI_TC_LOW_LATENCY`.
const LOW_LATENCY: u32 = 0x201;
/// `FI_TC_DEDICATED_ACCESS`.
const DEDICATED_ACCESS: u32 = 0x202;
/// `FI_TC_BULK_DATA`.
const BULK_DATA: u32 = 0x203;
/// `FI_TC_SCAVENGER`.
const SCAVENGER: u32 = 0x204;
/// `FI_TC_NETWORK_CTRL`.
const NETWORK_CONTROL: u32 = 0x205;

/// "Converts a DSCP defined value into a libfabric traffic class value" (`fi_tc_dscp_set`).
pub const fn traffic_class_of_dscp(dscp: u8) -> u32 {
    dscp as u32 | DSCP
}

/// The DSCP value of a traffic class; 0 of one that is none (`fi_tc_dscp_get`).
pub const fn dscp_of_traffic_class(class: u32) -> u8 {
    if class & DSCP != 0 { class as u8 } else { 0 }
}

/// The DSCP value that packets of a class carry, 6 bits: a label's is the one that the Internet's
/// standards (RFC 4594, RFC 8622) name for such traffic. None of no class (`FI_TC_UNSPEC`): what they
/// carry is left to the system.
///
/// Routers and switches map values of 8 to a priority, so that the labels' order holds in the
/// upper three bits as well: network control, dedicated access, low latency, bulk data, best
/// effort and scavenger.
pub const fn dscp_on_the_wire(class: u32) -> Option<u8> {
    Some(match class {
        UNSPECIFIED => return None,
        LOW_LATENCY => 32,
        DEDICATED_ACCESS => 46,
        BULK_DATA => 10,
        SCAVENGER => 1,
        NETWORK_CONTROL => 48,
        class => dscp_of_traffic_class(class) & 0x3f,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_keeps_its_dscp_value() {
        for dscp in 0..64 {
            assert_eq!(dscp_of_traffic_class(traffic_class_of_dscp(dscp)), dscp);
        }
        let labels = [0, 0x200, 0x205];
        assert!(labels.iter().all(|&label| dscp_of_traffic_class(label) == 0));
    }

    #[test]
    fn a_label_has_its_value_on_the_wire() {
        let labels = [0x204, 0x200, 0x203, LOW_LATENCY, DEDICATED_ACCESS, NETWORK_CONTROL];
        assert_eq!(labels.map(dscp_on_the_wire), [1, 0, 10, 32, 46, 48].map(Some));
        assert_eq!(dscp_on_the_wire(UNSPECIFIED), None);
        assert!((0..64).all(|dscp| dscp_on_the_wire(traffic_class_of_dscp(dscp)) == Some(dscp)));
    }
}
