//! Answers that need no connection.

use urxe_wire::cm::{Apr, CmMad, CommId, Ids, Message, Mra, Plain, Rej, RejReason, Rejected, SidrRep, SidrStatus};
use urxe_wire::{QKey, Qpn};

use super::timing::MRA_TIMEOUT;

/// The answer to a message about something that nobody here knows: a request is refused, a release agreed to
/// (IBA 12.9.8.6), so that the peer need not wait in vain.
#[must_use]
pub fn answer_to_unknown(mad: &CmMad) -> Option<CmMad> {
    let message = match &mad.message {
        Message::Req(req) => {
            let ids = Ids { local: CommId(0), remote: req.local_id };
            //= spec/connections.md#cm-004
            //# A request for a service that nobody serves MUST be rejected as an invalid service id.
            Message::Rej(plain_rej(ids, Rejected::Req, RejReason::INVALID_SERVICE_ID))
        }
        // Whoever asked is gone: the one that has accepted need not find out by silence.
        Message::Rep(rep) => {
            let ids = Ids { local: rep.ids.remote, remote: rep.ids.local };
            Message::Rej(plain_rej(ids, Rejected::Rep, RejReason::INVALID_COMM_ID))
        }
        Message::SidrReq(req) => {
            Message::SidrRep(plain_sidr_rep(req.request_id, req.service_id, SidrStatus::UNSUPPORTED))
        }
        //= spec/connections.md#cm-005
        //# A disconnect of an unknown connection MUST be agreed to.
        Message::Dreq(dreq) => {
            let ids = Ids { local: dreq.ids.remote, remote: dreq.ids.local };
            Message::Drep(Plain { ids, private_data: [0; 224] })
        }
        Message::Lap(lap) => {
            let ids = Ids { local: lap.ids.remote, remote: lap.ids.local };
            return Some(refuse_path(ids, mad.transaction_id, Apr::INVALID_COMM_ID));
        }
        _ => return None,
    };
    Some(CmMad { transaction_id: mad.transaction_id, attribute_modifier: 0, message })
}

/// The answer to a LAP: its path is not loaded.
pub(super) fn refuse_path(ids: Ids, transaction_id: u64, status: u8) -> CmMad {
    let apr = Apr { ids, info_len: 0, status, reserved: 0, info: [0; 72], private_data: [0; 148] };
    CmMad { transaction_id, attribute_modifier: 0, message: Message::Apr(apr) }
}

pub(super) fn plain_rej(ids: Ids, message: Rejected, reason: RejReason) -> Rej {
    Rej { ids, message, info_len: 0, reason, info: [0; 72], private_data: [0; 148] }
}

pub(super) fn plain_sidr_rep(request_id: CommId, service_id: u64, status: SidrStatus) -> SidrRep {
    SidrRep {
        request_id,
        status,
        info_len: 0,
        reserved: 0,
        qpn: Qpn::default(),
        service_id,
        q_key: QKey(0),
        info: [0; 72],
        private_data: [0; 136],
    }
}

pub(super) fn mra(ids: Ids, message: Rejected) -> Message {
    Message::Mra(Mra { ids, message, service_timeout: MRA_TIMEOUT, private_data: [0; 222] })
}
