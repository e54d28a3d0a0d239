//! Tables of calls that all refuse: those of what an object does not have, which answer -FI_ENOSYS,
//! and in [`closed`] those of an object that is closed, which answer -FI_EBADF.

use crate::abi::{
    self, Refused,
    atomic::OpsAtomic,
    constants::{BADF, NOSYS},
    control::OpsCm,
    fid::{Fid, class},
    transfer::{OpsCollective, OpsMsg, OpsRma, OpsTagged},
};

/// Has every call that such a table answers logged, as all other refusals are.
pub fn install() {
    abi::on_refusal(log);
}

fn log(refused: &Refused) {
    let why = match refused.errno {
        BADF => "it is closed",
        NOSYS => "kestrel has no such call of it",
        _ => "it is refused",
    };
    let Refused { table, call, object, .. } = refused;
    // As C has it: `OpsTagged` is `struct fi_ops_tagged`.
    let table = match table.trim_start_matches("Ops") {
        "Fid" => "fi_ops".to_owned(),
        table => format!("fi_ops_{}", table.to_lowercase()),
    };
    tracing::info!("{table}.{call} of {} {object:p}: {why}", kind(object.cast()));
}

/// What an object is, or was, in words.
fn kind(object: *const Fid) -> &'static str {
    if object.is_null() {
        return "nothing at";
    }
    // SAFETY: the call came through a table that the object points to, and every object begins with
    // this.
    match unsafe { (*object).fclass } {
        class::FABRIC => "fabric",
        class::DOMAIN => "domain",
        class::EP => "endpoint",
        class::SEP => "scalable endpoint",
        class::RX_CTX => "receive context",
        class::SRX_CTX => "shared receive context",
        class::TX_CTX => "transmit context",
        class::STX_CTX => "shared transmit context",
        class::PEP => "passive endpoint",
        class::AV => "address vector",
        class::MR => "memory region",
        class::EQ => "event queue",
        class::CQ => "completion queue",
        class::CNTR => "counter",
        class::WAIT => "wait set",
        class::POLL => "poll set",
        class::CONNREQ => "connection request",
        class::MC => "multicast group",
        _ => "object",
    }
}

pub static CM: OpsCm = OpsCm::refusing::<NOSYS>();
pub static MSG: OpsMsg = OpsMsg::refusing::<NOSYS>();
pub static RMA: OpsRma = OpsRma::refusing::<NOSYS>();
pub static TAGGED: OpsTagged = OpsTagged::refusing::<NOSYS>();
pub static ATOMIC: OpsAtomic = OpsAtomic::refusing::<NOSYS>();
/// No endpoint of kestrel has any.
pub static COLLECTIVE: OpsCollective = OpsCollective::refusing::<NOSYS>();

pub mod closed {
    //! What the tables of a closed object are replaced by.

    use crate::abi::{
        atomic::OpsAtomic,
        constants::BADF,
        control::{OpsCm, OpsEp},
        transfer::{OpsCollective, OpsMsg, OpsRma, OpsTagged},
    };

    pub static EP: OpsEp = OpsEp::refusing::<BADF>();
    pub static CM: OpsCm = OpsCm::refusing::<BADF>();
    pub static MSG: OpsMsg = OpsMsg::refusing::<BADF>();
    pub static RMA: OpsRma = OpsRma::refusing::<BADF>();
    pub static TAGGED: OpsTagged = OpsTagged::refusing::<BADF>();
    pub static ATOMIC: OpsAtomic = OpsAtomic::refusing::<BADF>();
    pub static COLLECTIVE: OpsCollective = OpsCollective::refusing::<BADF>();
}
