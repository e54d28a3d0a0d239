//! Tables of calls that all refuse: those of what an object does not have, which answer -FI_ENOSYS,
//! and in [`closed`] those of an object that is closed, which answer -FI_EBADF.

use crate::abi::{
    atomic::OpsAtomic,
    constants::NOSYS,
    control::OpsCm,
    transfer::{OpsCollective, OpsMsg, OpsRma, OpsTagged},
};

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
