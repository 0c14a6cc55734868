//! Agents, and which of them takes what.

use alloc::collections::BTreeMap;

use urxe_wire::mad::{self, MAD_LEN, Mad};

use super::types::{AgentId, Claim, RegisterError};

/// Bound of the versions of a class, exclusive (`MAX_MGMT_VERSION` of the kernel's mad_priv.h).
const VERSIONS: u8 = 0x83;
/// Bound of the classes, exclusive but for directed routes (`MAX_MGMT_CLASS` of the kernel's mad_priv.h).
const CLASSES: u8 = 80;

/// Method of a class, for which there is at most one agent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Slot {
    class: u8,
    version: u8,
    oui: [u8; 3],
    method: u8,
}

/// An agent.
#[derive(Debug)]
struct Agent {
    claim: Option<Claim>,
    has_rmpp: bool,
}

/// The agents of a port.
#[derive(Debug, Default)]
pub(super) struct Agents {
    agents: BTreeMap<AgentId, Agent>,
    slots: BTreeMap<Slot, AgentId>,
}

impl Claim {
    /// Checks what does not depend on other agents.
    ///
    /// # Errors
    /// All but [`RegisterError::InUse`].
    pub fn check(&self, has_rmpp: bool) -> Result<(), RegisterError> {
        if self.version >= VERSIONS {
            return Err(RegisterError::Version);
        }
        if self.class == 0 || (self.class >= CLASSES && !mad::smp::is_class(self.class)) {
            return Err(RegisterError::Class);
        }
        if mad::is_vendor_with_oui(self.class) && self.oui == [0; 3] {
            return Err(RegisterError::Vendor);
        }
        if has_rmpp && !mad::has_rmpp(self.class) {
            return Err(RegisterError::Rmpp);
        }
        Ok(())
    }

    /// Vendor, where the class names one.
    #[must_use]
    pub const fn vendor(&self) -> [u8; 3] {
        if mad::is_vendor_with_oui(self.class) { self.oui } else { [0; 3] }
    }

    fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        let Self { class, version, methods, .. } = *self;
        let oui = self.vendor();
        (0..128).filter(move |method| methods & (1 << method) != 0).map(move |method| Slot {
            class,
            version,
            oui,
            method,
        })
    }
}

impl Agents {
    pub(super) fn register(&mut self, id: AgentId, claim: Option<Claim>, has_rmpp: bool) -> Result<(), RegisterError> {
        if self.agents.contains_key(&id) {
            return Err(RegisterError::InUse);
        }
        if let Some(claim) = &claim {
            claim.check(has_rmpp)?;
            if claim.slots().any(|slot| self.slots.contains_key(&slot)) {
                return Err(RegisterError::InUse);
            }
            self.slots.extend(claim.slots().map(|slot| (slot, id)));
        }
        self.agents.insert(id, Agent { claim, has_rmpp });
        Ok(())
    }

    pub(super) fn unregister(&mut self, id: AgentId) -> bool {
        let Some(agent) = self.agents.remove(&id) else { return false };
        for slot in agent.claim.iter().flat_map(Claim::slots) {
            self.slots.remove(&slot);
        }
        true
    }

    pub(super) fn len(&self) -> usize {
        self.agents.len()
    }

    /// Whether RMPP of the agent's messages is done here; `None` if there is no such agent.
    pub(super) fn has_rmpp(&self, id: AgentId) -> Option<bool> {
        self.agents.get(&id).map(|agent| agent.has_rmpp)
    }

    /// The agent that a datagram is for.
    pub(super) fn addressee(&self, header: &Mad, datagram: &[u8; MAD_LEN]) -> Option<AgentId> {
        if header.is_response() {
            let id = AgentId::of(header.transaction_id);
            return self.agents.contains_key(&id).then_some(id);
        }
        let oui = if mad::is_vendor_with_oui(header.class) { mad::oui(datagram) } else { [0; 3] };
        let slot = Slot { class: header.class, version: header.class_version, oui, method: header.method };
        self.slots.get(&slot).copied()
    }
}
