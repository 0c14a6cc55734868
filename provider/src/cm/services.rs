//! Services that subnet administration knows (`rdma_resolve_addrinfo(3)` with `RAI_SA`): InfiniBand's.

use urxe_wire::mad::sa::{self, Record, service};

use super::administration::{Query, Request};
use super::event::Kind;
use super::id::State as Phase;
use super::service_records::{ServiceRecord, Services};
use super::{EINVAL, Manager, State};
use crate::kernel::Errno;

/// The service that is asked for (`struct rdma_ucm_ib_service`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedService {
    pub(crate) id: Option<u64>,
    pub(crate) name: Option<[u8; 64]>,
}

/// Bits of a mask: `ServiceID`, `ServiceName`.
const HAS_ID: u64 = 1;
const HAS_NAME: u64 = 1 << 6;

impl Manager {
    /// Asks the subnet's administration for a service (`rdma_resolve_ib_service` of the kernel's cma.c).
    ///
    /// # Errors
    /// EINVAL for an id that is not bound to a device, or has asked before; EOPNOTSUPP on RoCE, which has no such administration.
    pub(crate) fn resolve_ib_service(&self, handle: u32, wanted: &WantedService) -> Result<(), Errno> {
        let mut state = self.state();
        let id = state.id(handle)?;
        let index = id.device.filter(|_| id.state == Phase::AddrBound).ok_or(EINVAL)?;
        if !matches!(id.services, Services::Unknown) {
            return Err(EINVAL);
        }
        let device = state.devices.get(index).ok_or(Errno(libc::ENODEV))?;
        if !device.interface().link_layer().is_infiniband() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let mut record = [0; Record::Service.len()];
        let mut mask = 0;
        if let Some(id) = wanted.id {
            service::ID.put(&mut record, id);
            mask |= HAS_ID;
        }
        if let Some(name) = &wanted.name {
            service::NAME.put_slice(&mut record, name);
            mask |= HAS_NAME;
        }
        if mask == 0 {
            return Err(EINVAL);
        }
        let query = Some(Query::Services(handle));
        let request = state.request(index, sa::METHOD_GET_TABLE, Record::Service, mask, &record, query);
        state.id(handle)?.services = Services::Asked;
        drop(state);
        request.iter().for_each(Request::send);
        Ok(())
    }

    /// Services that have been told to an id.
    pub(crate) fn services(&self, handle: u32) -> Result<Vec<ServiceRecord>, Errno> {
        let mut state = self.state();
        match &state.id(handle)?.services {
            Services::Known(known) => Ok(known.clone()),
            Services::Unknown | Services::Asked => Ok(Vec::new()),
        }
    }
}

impl State {
    /// Tells an id what has been answered (`cma_query_ib_service_handler` of the kernel's cma.c).
    pub(super) fn handle_services(&mut self, handle: u32, message: Option<&[u8]>) {
        let Ok(id) = self.id(handle) else { return };
        if !matches!(id.services, Services::Asked) {
            return;
        }
        let told = message.map(|message| sa::response(message).map(|records| (records, sa::OFFSET.get(message))));
        let (services, kind, status) = match told {
            Some(Ok((records, distance))) => {
                let distance = usize::try_from(distance * 8).ok().filter(|distance| *distance >= Record::Service.len());
                let all = records.chunks(distance.unwrap_or(Record::Service.len()));
                let all = all.filter_map(|record| record.first_chunk().copied()).collect();
                (Services::Known(all), Kind::AddrinfoResolved, 0)
            }
            Some(Err(_)) => (Services::Unknown, Kind::AddrinfoError, -libc::EINVAL),
            None => (Services::Unknown, Kind::AddrinfoError, -libc::ETIMEDOUT),
        };
        id.services = services;
        if status != 0 {
            self.explain_event(handle, kind, status, None);
        }
        self.tell(handle, kind, status, None, Vec::new());
    }
}
