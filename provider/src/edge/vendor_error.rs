//! `vendor_err` of completions.

use urxe_engine::{Cqe, Refusal, WcStatus};
use urxe_options::Personality;

use crate::device;

/// The `vendor_err` of a completion with an error: that of ConnectX-5 and -6 on devices that look like one, as far as the project
/// rdma-fault-characterization has measured it; else 0.
pub(super) fn vendor_error(cqe: &Cqe) -> u32 {
    if device::personality() == Personality::Mlx5 { connect_x(cqe.status, cqe.refusal) } else { 0 }
}

const fn connect_x(status: WcStatus, refusal: Option<Refusal>) -> u32 {
    match status {
        WcStatus::LocalProtectionError => match refusal {
            Some(Refusal::NoSuchKey | Refusal::OtherPd) => 0x52,
            Some(Refusal::OutOfBounds) => 0x53,
            Some(Refusal::Access) => 0x33,
            _ => 0,
        },
        WcStatus::WrFlushError => 0xf5,
        WcStatus::RemoteInvalidRequestError => 0x8a,
        WcStatus::RemoteAccessError => 0x88,
        WcStatus::RetryExceededError => 0x81,
        WcStatus::RnrRetryExceededError => 0x87,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_measured() {
        assert_eq!(connect_x(WcStatus::RetryExceededError, None), 129);
        assert_eq!(connect_x(WcStatus::RemoteAccessError, None), 136);
        for (refusal, expected) in
            [(Refusal::NoSuchKey, 0x52), (Refusal::OutOfBounds, 0x53), (Refusal::Access, 0x33), (Refusal::Unmapped, 0)]
        {
            assert_eq!(connect_x(WcStatus::LocalProtectionError, Some(refusal)), expected);
        }
        assert_eq!(connect_x(WcStatus::Success, None), 0);
    }
}
