//! Requests about memberships of the port, from a process of the host to the owner of its address, and their answers: datagrams
//! of the class of announcements, which no program takes.

use urxe_wire::Gid;
use urxe_wire::mad::field::{Field, data, data_mut};
use urxe_wire::mad::sa::{self, Record, member};
use urxe_wire::mad::subnet_vendor::{self, CLASS, OUI};
use urxe_wire::mad::{MAD_LEN, Mad};

use super::announcement::{DATA, VERSION};

/// A membership.
const ATTRIBUTE: u16 = 0x12;
const MASK: Field = Field::bytes(0, 8);
/// Bytes of an `MCMemberRecord`, and where it is.
const RECORD_LEN: usize = Record::Member.len();
const RECORD: Field = Field::bytes(8, RECORD_LEN);

/// A request about a membership of the port, or its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortMembership {
    /// `Set()` joins, `Delete()` leaves; with the response bit, an answer.
    pub method: u8,
    /// Status of an answer, as subnet administrations have them.
    pub status: u16,
    /// Transaction of the process.
    pub transaction_id: u64,
    /// `ComponentMask`
    pub mask: u64,
    /// `MCMemberRecord`
    pub record: [u8; RECORD_LEN],
}

impl PortMembership {
    /// Reads a request to subnet administration; `None` if it is not about a membership.
    #[must_use]
    pub fn of_request(request: &[u8; MAD_LEN]) -> Option<Self> {
        let header = Mad::of(request)?;
        let is_it = header.class == Mad::CLASS_SUBN_ADM
            && header.attribute_id == Record::Member as u16
            && matches!(header.method, Mad::METHOD_SET | sa::METHOD_DELETE);
        let record = request.get(sa::DATA..)?.first_chunk().copied()?;
        is_it.then(|| Self {
            method: header.method,
            status: 0,
            transaction_id: header.transaction_id,
            mask: sa::COMPONENT_MASK.get(request),
            record,
        })
    }

    /// Reads a datagram; `None` if it is none of these.
    #[must_use]
    pub fn parse(datagram: &[u8; MAD_LEN]) -> Option<Self> {
        let header = Mad::of(datagram).filter(|header| subnet_vendor::is_announcement(header, datagram))?;
        let is_method = matches!(header.method & !Mad::RESPONSE, Mad::METHOD_SET | sa::METHOD_DELETE);
        let is_it = (header.class_version, header.attribute_id) == (VERSION, ATTRIBUTE) && is_method;
        let data = data(datagram, DATA);
        let record = RECORD.slice(data).try_into().ok()?;
        let Mad { method, status, transaction_id, .. } = header;
        is_it.then(|| Self { method, status, transaction_id, mask: MASK.get(data), record })
    }

    /// Whether the message answers a request.
    #[must_use]
    pub const fn is_answer(&self) -> bool {
        self.method & Mad::RESPONSE != 0
    }

    /// Builds the datagram.
    #[must_use]
    pub fn to_datagram(&self) -> [u8; MAD_LEN] {
        let Self { method, status, transaction_id, mask, record } = *self;
        let mut datagram = [0; MAD_LEN];
        Mad { transaction_id, status, ..Mad::new(CLASS, VERSION, method, ATTRIBUTE) }.put(&mut datagram);
        Field::bytes(37, 3).put_slice(&mut datagram, &OUI);
        let data = data_mut(&mut datagram, DATA);
        MASK.put(data, mask);
        RECORD.put_slice(data, &record);
        datagram
    }

    /// Builds the same as a request to subnet administration, or its response.
    #[must_use]
    pub fn to_administration(&self) -> [u8; MAD_LEN] {
        let Self { method, status, transaction_id, mask, record } = *self;
        let method = if method == Mad::METHOD_SET | Mad::RESPONSE { Mad::METHOD_GET | Mad::RESPONSE } else { method };
        let mut datagram = sa::request(method, Record::Member, mask, &record);
        let header = Mad::new(Mad::CLASS_SUBN_ADM, sa::VERSION, method, Record::Member as u16);
        Mad { transaction_id, status, ..header }.put(&mut datagram);
        datagram
    }

    /// MGID of the group; zero where the request names none.
    #[must_use]
    pub fn mgid(&self) -> Gid {
        let is_named = self.mask & member::HAS_MGID != 0;
        let octets = member::MGID.slice(&self.record).try_into().ok().filter(|_| is_named);
        Gid::new(octets.unwrap_or_default())
    }

    /// Join states that are asked for, or given up.
    #[must_use]
    pub fn join_state(&self) -> u64 {
        member::JOIN_STATE.get(&self.record)
    }

    /// Whether the message asks to join.
    #[must_use]
    pub const fn is_join(&self) -> bool {
        self.method == Mad::METHOD_SET
    }
}
