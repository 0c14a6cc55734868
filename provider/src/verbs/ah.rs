//! Address handles: where datagrams go.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use urxe_net::Route;
use urxe_net::registry::block_of;
use urxe_wire::Qpn;

use super::context::Context;
use super::objects::{AddressVector, route};
use crate::kernel::Errno;
use crate::runtime::lock;

/// An address handle. Which UDP source port a datagram gets depends on the process it is for, so there is a route for
/// each block of queue pair numbers that was written to.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    to: AddressVector,
    routes: Mutex<HashMap<u16, Arc<Route>>>,
}

impl AddressHandle {
    /// Finds out whether there is a way, as the man page wants it; to which queue pair is said by each request.
    ///
    /// # Errors
    /// EINVAL for what is no way.
    pub(crate) fn new(context: &Context, to: AddressVector) -> Result<Self, Errno> {
        // The label's source port is for whom the first datagram goes to.
        route(context, &AddressVector { flow_label: 0, ..to }, Qpn::default().get())?;
        Ok(Self { to, routes: Mutex::default() })
    }

    /// The way to a queue pair.
    ///
    /// # Errors
    /// EINVAL if there is none any more.
    pub(crate) fn route(&self, context: &Context, qpn: Qpn) -> Result<Arc<Route>, Errno> {
        let mut routes = lock(&self.routes);
        let block = block_of(qpn);
        if let Some(route) = routes.get(&block) {
            return Ok(Arc::clone(route));
        }
        let route = route(context, &self.to, qpn.get())?;
        routes.insert(block, Arc::clone(&route));
        Ok(route)
    }
}
