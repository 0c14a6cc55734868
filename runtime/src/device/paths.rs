//! Primary paths that are down: queue pairs go on over their alternate ones.

use std::sync::Arc;

use urxe_net::Route;

use super::{Device, TxContext};

impl Device {
    /// Has queue pairs leave paths from addresses of interfaces that are down, if they have an armed path from another.
    #[cold]
    pub(super) fn leave_dead_paths(&self, work: &mut TxContext) {
        let interface = self.port.interface();
        let is_usable = |route: Option<&Arc<Route>>| route.is_some_and(|route| interface.is_usable(route.local().ip()));
        for qp in self.queue_pairs() {
            // Most have no alternate path, and are left alone.
            if qp.inspect(|engine| !is_usable(engine.route()) && is_usable(engine.alternate_route())) {
                qp.drive(work, |engine, io| engine.path_failed(io));
            }
        }
    }
}
