//! Announcements: each host tells the others that it is there, and with which `PortInfo`.
//!
//! A vendor-class datagram to QP1, sent to a multicast group of the link. A host that has just come asks with `Get()`, and each
//! other one answers with `GetResp()`. Nothing in it says more than the sender's address does: the LID and the GUID that it
//! claims have to be those of the address.

use urxe_wire::mad::field::{Field, data, data_mut};
use urxe_wire::mad::node::{DESCRIPTION_LEN, port_info};
use urxe_wire::mad::subnet_vendor::{CLASS, OUI};
use urxe_wire::mad::{MAD_LEN, Mad};
use urxe_wire::{Gid, Guid, Lid};

/// Version of the class.
pub(super) const VERSION: u8 = 1;
/// A host and its port.
const ATTRIBUTE_HOST: u16 = 0x10;
/// Multicast groups that a host's port has joined.
const ATTRIBUTE_GROUPS: u16 = 0x11;

/// Method of answers.
const GET_RESPONSE: u8 = Mad::METHOD_GET | Mad::RESPONSE;

/// Start of the data.
pub(super) const DATA: usize = 40;
const GUID: Field = Field::bytes(0, 8);
const KNOWN: Field = Field::bytes(8, 2);
const COUNT: Field = Field::bytes(10, 1);
/// Kinds of the groups, two bits each.
const KINDS: Field = Field::bytes(11, 1);
/// Number of the process that tells.
const INSTANCE: Field = Field::bytes(12, 4);
const PORT_INFO: Field = Field::bytes(16, port_info::LEN);
const DESCRIPTION: Field = Field::bytes(16 + port_info::LEN, DESCRIPTION_LEN);
/// Groups begin here; each has this many bytes of an `MCMemberRecord`.
const GROUPS: usize = DATA + 16;
/// Bytes of an `MCMemberRecord`.
pub(super) const GROUP_LEN: usize = 52;
/// Groups of one datagram.
pub(super) const GROUPS_A_DATAGRAM: usize = (MAD_LEN - GROUPS) / GROUP_LEN;

/// Facts about a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Facts {
    pub(super) guid: Guid,
    /// PortInfo without the M_Key, which stays with the host.
    pub(super) port_info: [u8; port_info::LEN],
    pub(super) description: [u8; DESCRIPTION_LEN],
}

impl Facts {
    pub(super) fn lid(&self) -> Lid {
        Lid(port_info::LID.get_u16(&self.port_info))
    }

    pub(super) fn field(&self, field: Field) -> u64 {
        field.get(&self.port_info)
    }

    pub(super) fn gid(&self) -> Gid {
        self.guid.gid()
    }

    /// Whether a program of the host says that it is a subnet manager.
    pub(super) fn is_sm(&self) -> bool {
        self.field(port_info::CAPABILITY_MASK) & port_info::IS_SM != 0
    }
}

/// An announcement that has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Announcement {
    /// A host that has come wants to know who is there.
    Question,
    /// A host, and the number of the process that tells; in an answer to a question with the number of hosts that it knows, itself
    /// and the asker included.
    Host(Facts, u32, Option<u16>),
    /// Groups that the sender's port has joined: some of them.
    Groups([ToldGroup; GROUPS_A_DATAGRAM], usize),
}

/// A group that a port has joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ToldGroup {
    /// `MCMemberRecord`
    pub(super) record: [u8; GROUP_LEN],
    pub(super) kind: GroupKind,
}

/// Way in which a port has come into a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GroupKind {
    /// A program has joined it, for as long as the port is there.
    OfPort,
    /// Processes of the host are in the group, and the port for as long as they are.
    OfProcesses,
    /// Processes of the host are in it, in the administration of a program: other hosts do not count it.
    Elsewhere,
}

impl GroupKind {
    const fn bits(self) -> u8 {
        match self {
            Self::OfPort => 0,
            Self::OfProcesses => 1,
            Self::Elsewhere => 2,
        }
    }

    const fn of_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0 => Self::OfPort,
            1 => Self::OfProcesses,
            _ => Self::Elsewhere,
        }
    }
}

fn empty(method: u8, attribute_id: u16, transaction_id: u64) -> [u8; MAD_LEN] {
    let mut datagram = [0; MAD_LEN];
    Mad { transaction_id, ..Mad::new(CLASS, VERSION, method, attribute_id) }.put(&mut datagram);
    Field::bytes(37, 3).put_slice(&mut datagram, &OUI);
    datagram
}

impl Announcement {
    pub(super) fn question(transaction_id: u64) -> [u8; MAD_LEN] {
        empty(Mad::METHOD_GET, ATTRIBUTE_HOST, transaction_id)
    }

    /// Facts about the own host, to everybody.
    pub(super) fn host(facts: &Facts, instance: u32) -> [u8; MAD_LEN] {
        Self::about(facts, instance, Mad::METHOD_SEND, 0, 0)
    }

    /// Facts about the own host, which knows this many, as the answer to a question of this transaction.
    pub(super) fn answer(facts: &Facts, instance: u32, known: usize, transaction_id: u64) -> [u8; MAD_LEN] {
        Self::about(facts, instance, GET_RESPONSE, transaction_id, known)
    }

    fn about(facts: &Facts, instance: u32, method: u8, transaction_id: u64, known: usize) -> [u8; MAD_LEN] {
        let mut datagram = empty(method, ATTRIBUTE_HOST, transaction_id);
        let data = data_mut(&mut datagram, DATA);
        GUID.put(data, facts.guid.into());
        KNOWN.put(data, known as u64);
        INSTANCE.put(data, instance.into());
        PORT_INFO.put_slice(data, &facts.port_info);
        port_info::M_KEY.moved(16).put(data, 0);
        DESCRIPTION.put_slice(data, &facts.description);
        datagram
    }

    /// The first groups of these, at most [`GROUPS_A_DATAGRAM`].
    pub(super) fn groups(groups: &[ToldGroup], lid: Lid) -> [u8; MAD_LEN] {
        Self::about_groups(groups, lid, Mad::METHOD_SEND, 0)
    }

    /// Groups as [`groups`](Self::groups) has them, in an answer to a question of this transaction.
    pub(super) fn groups_answer(groups: &[ToldGroup], lid: Lid, transaction_id: u64) -> [u8; MAD_LEN] {
        Self::about_groups(groups, lid, GET_RESPONSE, transaction_id)
    }

    fn about_groups(groups: &[ToldGroup], lid: Lid, method: u8, transaction_id: u64) -> [u8; MAD_LEN] {
        let mut datagram = empty(method, ATTRIBUTE_GROUPS, transaction_id);
        let (mut count, mut kinds) = (0, 0);
        for (group, at) in groups.iter().take(GROUPS_A_DATAGRAM).zip(0..) {
            Field::bytes(GROUPS + at * GROUP_LEN, GROUP_LEN).put_slice(&mut datagram, &group.record);
            kinds |= group.kind.bits() << (2 * at);
            count += 1;
        }
        let data = data_mut(&mut datagram, DATA);
        COUNT.put(data, count);
        KINDS.put(data, kinds.into());
        port_info::LID.moved(16).put(data, lid.0.into());
        datagram
    }

    /// Reads an announcement of which [`is_announcement`](urxe_wire::mad::subnet_vendor::is_announcement) is true.
    pub(super) fn parse(datagram: &[u8; MAD_LEN]) -> Option<Self> {
        let header = Mad::of(datagram)?;
        let is_answer = header.method == GET_RESPONSE;
        let told = is_answer || header.method == Mad::METHOD_SEND;
        let data = data(datagram, DATA);
        match header.attribute_id {
            _ if header.class_version != VERSION => None,
            ATTRIBUTE_HOST if header.method == Mad::METHOD_GET => Some(Self::Question),
            ATTRIBUTE_HOST if told => {
                let facts = Facts {
                    guid: GUID.get(data).into(),
                    port_info: PORT_INFO.slice(data).try_into().ok()?,
                    description: DESCRIPTION.slice(data).try_into().ok()?,
                };
                let instance = u32::try_from(INSTANCE.get(data)).ok()?;
                Some(Self::Host(facts, instance, is_answer.then(|| KNOWN.get_u16(data))))
            }
            ATTRIBUTE_GROUPS if told => {
                let none = ToldGroup { record: [0; GROUP_LEN], kind: GroupKind::OfPort };
                let mut groups = [none; GROUPS_A_DATAGRAM];
                let count = usize::try_from(COUNT.get(data)).ok().filter(|count| *count <= GROUPS_A_DATAGRAM)?;
                let kinds = u8::try_from(KINDS.get(data)).ok()?;
                for (group, at) in groups.iter_mut().zip(0..count) {
                    group.record = Field::bytes(GROUPS + at * GROUP_LEN, GROUP_LEN).slice(datagram).try_into().ok()?;
                    group.kind = GroupKind::of_bits(kinds >> (2 * at));
                }
                Some(Self::Groups(groups, count))
            }
            _ => None,
        }
    }
}
