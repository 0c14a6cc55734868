//! Structures of `rdma/ib_user_mad.h`, to and from what the rest works with.

use urxe_engine::mad::{Address, Claim};
use urxe_net::Port;
use urxe_wire::mad::Mad;
use urxe_wire::mad::topology::Switch;
use urxe_wire::{Gid, Lid, Qpn};

use super::EINVAL;
use crate::kernel::Errno;
use crate::kernel::memory::Fields;
use crate::mad::inbox::{Content, HEADER, Header, Packet};
use crate::verbs::address_vector::AddressVector;
use crate::verbs::lid;
use urxe_runtime::subnet::{lid_of_node, node_gid};

/// Bytes of `struct ib_user_mad_hdr_old`, which lacks the P_Key index.
pub(super) const OLD_HEADER: usize = 56;

/// `IB_USER_MAD_REGISTER_AGENT`: `_IOWR(0x1b, 1, struct ib_user_mad_reg_req)`.
pub const REGISTER_AGENT: u32 = 0xC01C_1B01;
/// `IB_USER_MAD_UNREGISTER_AGENT`: `_IOW(0x1b, 2, __u32)`.
pub const UNREGISTER_AGENT: u32 = 0x4004_1B02;
/// `IB_USER_MAD_ENABLE_PKEY`: `_IO(0x1b, 3)`.
pub const ENABLE_PKEY: u32 = 0x1B03;
/// `IB_USER_MAD_REGISTER_AGENT2`: `_IOWR(0x1b, 4, struct ib_user_mad_reg_req2)`.
pub const REGISTER_AGENT_2: u32 = 0xC028_1B04;

/// Bytes of `struct ib_user_mad_reg_req`.
pub(super) const REQUEST: usize = 28;
/// Bytes of `struct ib_user_mad_reg_req2`, and where its flags are.
pub(super) const REQUEST_2: usize = 40;
pub(super) const FLAGS_2: u64 = 12;
/// `IB_USER_MAD_USER_RMPP`, the only flag.
pub(super) const USER_RMPP: u32 = 1;

/// A request to register an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) qpn: u32,
    /// `None` if the class is 0: the agent gets responses only.
    pub(super) claim: Option<Claim>,
    pub(super) rmpp_version: u8,
    pub(super) flags: u32,
    /// An OUI of more than three bytes.
    pub(super) has_bad_oui: bool,
}

/// The 128 bits of `method_mask`, in the order of longs.
fn methods(fields: &mut Fields<'_>) -> Option<u128> {
    let (low, high) = (fields.u64()?, fields.u64()?);
    Some(u128::from(high) << 64 | u128::from(low))
}

impl Registration {
    /// Reads `struct ib_user_mad_reg_req`.
    pub(super) fn parse(bytes: &[u8; REQUEST]) -> Option<Self> {
        let mut fields = Fields(bytes.get(4..)?);
        let methods = methods(&mut fields)?;
        let [qpn, class, version, a, b, c, rmpp_version] = *bytes.get(20..)?.first_chunk()?;
        let claim = Claim { class, version, oui: [a, b, c], methods };
        let claim = (class != 0).then_some(claim);
        Some(Self { qpn: qpn.into(), claim, rmpp_version, flags: 0, has_bad_oui: false })
    }

    /// Reads `struct ib_user_mad_reg_req2`.
    pub(super) fn parse_2(bytes: &[u8; REQUEST_2]) -> Option<Self> {
        let qpn = Fields(bytes.get(4..)?).u32()?;
        let [class, version, ..] = *bytes.get(8..)?.first_chunk::<2>()?;
        let mut fields = Fields(bytes.get(12..)?);
        let flags = fields.u32()?;
        let methods = methods(&mut fields)?;
        let oui = fields.u32()?;
        let [high, a, b, c] = oui.to_be_bytes();
        let claim = (class != 0).then_some(Claim { class, version, oui: [a, b, c], methods });
        let rmpp_version = *bytes.get(36)?;
        Some(Self { qpn, claim, rmpp_version, flags, has_bad_oui: class != 0 && high != 0 })
    }
}

/// Header that a program writes in front of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) agent: u32,
    pub(super) timeout_ms: u32,
    pub(super) retries: u32,
    qpn: u32,
    lid: Lid,
    has_grh: bool,
    gid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    gid: Gid,
    flow_label: u32,
}

impl Sent {
    pub(super) fn parse(header: &Header) -> Option<Self> {
        let word = |at: usize| header.get(at..at + 4)?.first_chunk().copied();
        let [has_grh, gid_index, hop_limit, traffic_class] = word(32)?;
        let [high, low, ..] = word(28)?;
        Some(Self {
            agent: u32::from_ne_bytes(word(0)?),
            timeout_ms: u32::from_ne_bytes(word(8)?),
            retries: u32::from_ne_bytes(word(12)?),
            qpn: u32::from_be_bytes(word(20)?),
            lid: Lid(u16::from_be_bytes([high, low])),
            has_grh: has_grh != 0,
            gid_index,
            hop_limit,
            traffic_class,
            gid: Gid::new(*header.get(36..)?.first_chunk()?),
            flow_label: u32::from_be_bytes(word(52)?),
        })
    }

    /// Destination of a message of a class: EINVAL without a GRH, unless ports have LIDs (`rdma_check_ah_attr` of the kernel's verbs.c).
    pub(super) fn address(&self, port: &Port, class: u8) -> Result<Address, Errno> {
        let av = AddressVector {
            dgid: self.gid,
            sgid_index: self.gid_index.into(),
            flow_label: self.flow_label,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            is_global: self.has_grh,
            dlid: self.lid,
        };
        let interface = port.interface();
        // Directed routes begin in this process, whose the switches are as well.
        let is_directed = self.qpn == 0 && class == Mad::CLASS_SUBN_DIRECTED;
        let is_node = is_directed || self.lid == Lid::PERMISSIVE || Switch::of(self.lid).is_some();
        if is_node && !self.has_grh && interface.link_layer().is_infiniband() {
            let (_, own) = interface.first_ipv4().ok_or(EINVAL)?;
            return Ok(Address {
                local: Gid::from(std::net::IpAddr::V4(own)),
                remote: node_gid(self.lid),
                qpn: Qpn::new(self.qpn),
                flow_label: 0,
                traffic_class: 0,
                hop_limit: 0,
            });
        }
        let av = if self.has_grh { av } else { lid::with_grh(port, &av)? };
        let index = av.sgid_index as usize;
        let local = interface.gid(index).filter(|_| !interface.gid_layout().is_roce_v1(index)).ok_or(EINVAL)?;
        if av.dgid == Gid::UNSPECIFIED {
            return Err(EINVAL);
        }
        Ok(Address {
            local: interface.network_gid(&local),
            remote: interface.network_gid(&av.dgid),
            qpn: Qpn::new(self.qpn),
            flow_label: av.flow_label & 0x000F_FFFF,
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
        })
    }
}

/// `struct ib_user_mad_hdr` in front of something to read: length of all that follows included.
pub(super) fn header_of(packet: &Packet, header_len: usize, port: &Port) -> Header {
    let (from, message) = match &packet.content {
        Content::Received { from, message } => (from, message),
        Content::TimedOut { context, .. } => {
            let mut header = *context;
            put(&mut header, 4, &libc::ETIMEDOUT.to_ne_bytes());
            return header;
        }
    };
    let mut header = [0; HEADER];
    let interface = port.interface();
    let length = u32::try_from(header_len + message.len()).unwrap_or(u32::MAX);
    let gid_index = interface.gid_index(&from.local).and_then(|index| u8::try_from(index).ok()).unwrap_or_default();
    put(&mut header, 0, &packet.agent.to_ne_bytes());
    put(&mut header, 16, &length.to_ne_bytes());
    put(&mut header, 20, &from.qpn.get().to_be_bytes());
    if let Some(lid) = lid_of_node(&from.remote) {
        put(&mut header, 28, &lid.0.to_be_bytes());
        return header;
    }
    put(&mut header, 28, &lid::of_peer(port, &from.remote).0.to_be_bytes());
    put(&mut header, 32, &[1, gid_index, from.hop_limit, from.traffic_class]);
    put(&mut header, 36, &interface.shown_gid(&from.remote).octets());
    put(&mut header, 52, &from.flow_label.to_be_bytes());
    header
}

fn put(header: &mut Header, at: usize, bytes: &[u8]) {
    if let Some(to) = header.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations() {
        let mut bytes = [0; REQUEST];
        bytes[4] = 0b0110;
        bytes[19] = 0x80;
        bytes[20..27].copy_from_slice(&[1, 0x32, 1, 0, 0x14, 5, 1]);
        let claim = Claim { class: 0x32, version: 1, oui: [0, 0x14, 5], methods: 1 << 127 | 0b0110 };
        let first = Registration { qpn: 1, claim: Some(claim), rmpp_version: 1, flags: 0, has_bad_oui: false };
        assert_eq!(Registration::parse(&bytes), Some(first));
        let mut bytes = [0; REQUEST_2];
        bytes[4..8].copy_from_slice(&1_u32.to_ne_bytes());
        bytes[8..10].copy_from_slice(&[0x32, 1]);
        bytes[12..16].copy_from_slice(&1_u32.to_ne_bytes());
        bytes[16..24].copy_from_slice(&0b0110_u64.to_ne_bytes());
        bytes[24..32].copy_from_slice(&(1_u64 << 63).to_ne_bytes());
        bytes[32..36].copy_from_slice(&0x1405_u32.to_ne_bytes());
        bytes[36] = 1;
        assert_eq!(Registration::parse_2(&bytes), Some(Registration { flags: 1, ..first }));
        bytes[32..36].copy_from_slice(&0x0100_1405_u32.to_ne_bytes());
        assert!(Registration::parse_2(&bytes).unwrap().has_bad_oui);
        bytes[8] = 0;
        let only_asks = Registration::parse_2(&bytes).unwrap();
        assert_eq!((only_asks.claim, only_asks.has_bad_oui), (None, false));
    }

    #[test]
    fn headers_are_laid_out_as_the_kernels() {
        let mut header = [0; HEADER];
        for (byte, at) in header.iter_mut().zip(0_u8..) {
            *byte = at;
        }
        let sent = Sent::parse(&header).unwrap();
        assert_eq!((sent.qpn, sent.lid, sent.flow_label), (0x1415_1617, Lid(0x1C1D), 0x3435_3637));
        assert_eq!((sent.gid_index, sent.hop_limit, sent.traffic_class), (33, 34, 35));
        assert_eq!(sent.gid.octets()[..2], [36, 37]);
        assert!(sent.has_grh);
    }
}
