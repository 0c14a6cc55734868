//! Rules reported already, for each object that still exists.

use std::collections::{HashMap, HashSet};

use urxe_engine::Key;
use urxe_wire::Qpn;

use super::rules::Rule;

/// Object of a report.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Object {
    /// The device, or the program as a whole.
    Device,
    Qp(Qpn),
    /// A completion queue, by its address.
    Cq(u64),
    /// A region that is no more.
    Dead(Key),
    /// A memory window, by its index among keys.
    Window(u32),
}

/// Rules that were reported, once for each object. An object that is no more may leave its name to another.
#[derive(Debug, Default)]
pub(super) struct Reported(HashMap<Object, HashSet<Rule>>);

impl Reported {
    /// Whether a finding has not been reported yet.
    pub(super) fn first(&mut self, rule: Rule, object: Object) -> bool {
        self.0.entry(object).or_default().insert(rule)
    }

    /// The object is no more.
    pub(super) fn forget(&mut self, object: Object) {
        self.0.remove(&object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_for_each_object() {
        let (mut reported, [one, other]) = (Reported::default(), [1, 2].map(|number| Object::Qp(Qpn::new(number))));
        assert!(reported.first(Rule::SendState, one) && reported.first(Rule::SendState, other));
        assert!(reported.first(Rule::NothingSignaled, one) && !reported.first(Rule::SendState, one));
        reported.forget(one);
        assert!(reported.first(Rule::SendState, one) && !reported.first(Rule::SendState, other));
        reported.forget(one);
        reported.forget(other);
        assert!(reported.0.is_empty(), "what is gone takes no memory");
    }
}
