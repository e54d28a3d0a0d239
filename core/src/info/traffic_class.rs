//! Traffic classes. Reference: fi_endpoint(3), "Traffic Class (tclass)".

/// Set in a class that is a DSCP value (`FI_TC_DSCP`).
const DSCP: u32 = 0x100;

/// "Converts a DSCP defined value into a libfabric traffic class value" (`fi_tc_dscp_set`).
pub const fn traffic_class_of_dscp(dscp: u8) -> u32 {
    dscp as u32 | DSCP
}

/// The DSCP value of a traffic class; 0 of one that is none (`fi_tc_dscp_get`).
pub const fn dscp_of_traffic_class(class: u32) -> u8 {
    if class & DSCP != 0 { class as u8 } else { 0 }
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
}
