//! Tasks of the subnet that programs of this process take over.

use urxe_engine::mad::{Claim, MadPort};
use urxe_wire::mad::{Mad, sa};

use super::Fabric;

/// Methods that subnet administration answers: all requests of its class (IBA 15.2.2), to say of some that it does not support them.
const ADMINISTRATION: u128 = 1 << Mad::METHOD_GET
    | 1 << Mad::METHOD_SET
    | 1 << sa::METHOD_GET_TABLE
    | 1 << sa::METHOD_GET_TRACE_TABLE
    | 1 << sa::METHOD_GET_MULTI
    | 1 << sa::METHOD_DELETE;

/// Methods that an agent takes of requests to subnet administration.
#[must_use]
pub fn administered(claim: &Claim) -> u128 {
    let is_administration = (claim.class, claim.version) == (Mad::CLASS_SUBN_ADM, sa::VERSION);
    if is_administration { claim.methods & ADMINISTRATION } else { 0 }
}

/// Whether an agent takes traps.
#[must_use]
pub fn takes_traps(claim: &Claim) -> bool {
    claim.class == Mad::CLASS_SUBN_LID && claim.methods & 1 << Mad::METHOD_TRAP != 0
}

impl<C: Clone> Fabric<C> {
    /// Leaves methods of subnet administration to programs of this process. A program that answers questions does all of it.
    pub fn administrate(&mut self, port: &mut MadPort<C>, taken: u128) {
        let methods = if taken & 1 << Mad::METHOD_GET == 0 { ADMINISTRATION & !taken } else { 0 };
        if port.has_agent(self.agent) && self.methods == methods {
            return;
        }
        port.unregister(self.agent);
        self.answers = self.give_up();
        let claim = Claim { class: Mad::CLASS_SUBN_ADM, version: sa::VERSION, oui: [0; 3], methods };
        self.methods = methods;
        if port.register(self.agent, Some(claim), true).is_err() {
            // For its own requests, whatever others have.
            self.methods = 0;
            let _ = port.register(self.agent, None, true);
        }
    }
}
