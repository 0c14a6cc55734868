//! The agent of the own host's port.

use urxe_wire::Lid;
use urxe_wire::mad::node::port_info;
use urxe_wire::mad::smp::{self, Attribute};
use urxe_wire::mad::{MAD_LEN, Mad};

use super::super::Subnet;
use super::super::announcement::Facts;
use super::{
    Data, Failure, INVALID, UNSUPPORTED, attribute_of, guid_block, host_node_info, lanes, p_key_block, padded, respond,
};

impl Subnet {
    /// Answers `Get()` and `Set()` of the host with this LID for the own port. `None`: the datagram is dropped, as its M_Key is wrong.
    pub(in super::super) fn answer_for_host(
        &mut self,
        sender: Option<Lid>,
        datagram: &mut [u8; MAD_LEN],
    ) -> Option<()> {
        let header = Mad::of(datagram)?;
        let is_set = header.method == Mad::METHOD_SET;
        if !self.has_m_key(is_set, smp::M_KEY.get(datagram)) {
            return None;
        }
        let modifier = header.attribute_modifier;
        let attribute = Attribute::new(header.attribute_id);
        let result = match attribute {
            _ if header.class_version != 1 => Err(Mad::STATUS_BAD_VERSION),
            Some(Attribute::NodeInfo) if !is_set => Ok(padded(&host_node_info(&self.own, self.config.p_keys.len()))),
            Some(Attribute::NodeDescription) if !is_set => Ok(self.own.description),
            Some(Attribute::PortInfo) if modifier > 1 => Err(INVALID),
            Some(Attribute::PortInfo) if is_set => self.set_port_info(sender, &attribute_of(datagram)),
            Some(Attribute::PortInfo) => Ok(self.own_port_info(smp::M_KEY.get(datagram))),
            // The tables follow from addresses and options: a `Set()` tells what they are.
            Some(Attribute::PKeyTable) => p_key_block(&self.config.p_keys, modifier & 0xFFFF).ok_or(INVALID),
            Some(Attribute::GuidInfo) => guid_block(&self.config.guids, modifier).ok_or(INVALID),
            Some(attribute @ (Attribute::SlToVl | Attribute::VlArbitration)) => lanes(attribute, modifier),
            _ => Err(UNSUPPORTED),
        };
        respond(datagram, &header, result);
        Some(())
    }

    /// `PortInfo` of the own port for a request with this M_Key: with the port's, for whoever may see it (IBA 14.2.4).
    fn own_port_info(&self, m_key: u64) -> Data {
        let mut info = self.own.port_info;
        let is_open = self.own.field(port_info::M_KEY_PROTECTION) == 0;
        port_info::M_KEY.put(&mut info, if is_open || m_key == self.m_key { self.m_key } else { 0 });
        info
    }

    /// Whether a request has the right to be answered (IBA 14.2.4).
    fn has_m_key(&self, is_set: bool, m_key: u64) -> bool {
        let protection = self.own.field(port_info::M_KEY_PROTECTION);
        self.m_key == 0 || self.m_key == m_key || (!is_set && protection < 2)
    }

    /// Whether the host with this LID may give the port this key: the one that it is to have now, or as its manager.
    fn may_lock(&self, sender: Option<Lid>, m_key: u64, sm_lid: Lid) -> bool {
        let is_manager = || self.hosts.get(sm_lid).is_some_and(Facts::is_sm) && sender == Some(sm_lid);
        m_key == 0 || m_key == self.m_key || is_manager()
    }

    fn set_port_info(&mut self, sender: Option<Lid>, wanted: &Data) -> Result<Data, Failure> {
        let want = |field: urxe_wire::mad::field::Field| field.get(wanted);
        let (lid, state) = (want(port_info::LID), want(port_info::STATE));
        // LIDs follow from addresses, for others to know them: no other one can be given.
        let is_own = lid == u64::from(self.config.lid.0) && want(port_info::LMC) == 0;
        let now = self.own.field(port_info::STATE);
        let next = match (now, state) {
            (now, 0) => now,
            (port_info::DOWN, _) => return Err(INVALID),
            // Down: the link is lost and found again.
            (_, port_info::DOWN) => port_info::INIT,
            (port_info::INIT | port_info::ARMED, port_info::ARMED) => port_info::ARMED,
            (port_info::ARMED | port_info::ACTIVE, port_info::ACTIVE) => port_info::ACTIVE,
            _ => return Err(INVALID),
        };
        let is_physical = matches!(want(port_info::PHYSICAL_STATE), 0 | 2 | port_info::LINK_UP);
        let mtu = want(port_info::NEIGHBOR_MTU);
        let sm_lid = Lid(port_info::SM_LID.get_u16(wanted));
        let has_lanes = want(port_info::OPERATIONAL_VLS) <= self.own.field(port_info::VL_CAP);
        if !self.may_lock(sender, want(port_info::M_KEY), sm_lid) {
            return Err(INVALID);
        }
        if !is_own || !is_physical || !has_lanes || mtu > self.own.field(port_info::MTU_CAP) || !sm_lid.is_unicast() {
            return Err(INVALID);
        }
        let before = (self.own.port_info, self.m_key);
        for field in port_info::WRITABLE {
            // Zero: no change.
            let is_kept = field == port_info::OPERATIONAL_VLS || field == port_info::DOWN_DEFAULT;
            if want(field) != 0 || !(is_kept || field == port_info::NEIGHBOR_MTU) {
                field.copy(wanted, &mut self.own.port_info);
            }
        }
        self.m_key = want(port_info::M_KEY);
        port_info::M_KEY.put(&mut self.own.port_info, 0);
        port_info::STATE.put(&mut self.own.port_info, next);
        let mut answer = self.own_port_info(self.m_key);
        if want(port_info::CLIENT_REREGISTER) != 0 {
            port_info::CLIENT_REREGISTER.put(&mut answer, 1);
            self.reregister = true;
        }
        self.own_has_changed |= before != (self.own.port_info, self.m_key);
        Ok(answer)
    }
}
