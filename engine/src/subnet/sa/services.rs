//! Services that programs of this host have registered, as `ServiceRecord`s (IBA 15.2.5.13).

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::mad::sa::{self, Record, service};

use super::{Failure, Request};
use crate::time::Instant;

/// Services that may be registered.
const SERVICES: usize = 256;
/// Lease without end.
const FOR_EVER: u64 = 0xFFFF_FFFF;

/// Services with the end of their lease.
#[derive(Debug, Default)]
pub(super) struct Services(Vec<(Vec<u8>, Option<Instant>)>);

/// A record as programs get it: nobody learns of a key.
fn without_key(record: &[u8]) -> Vec<u8> {
    let mut record = record.to_vec();
    service::KEY.put_slice(&mut record, &[0; 16]);
    record
}

impl Services {
    fn position(&self, wanted: &[u8]) -> Option<usize> {
        let same = |(record, _): &(Vec<u8>, _)| service::IDENTITY.iter().all(|field| field.is_same(record, wanted));
        self.0.iter().position(same)
    }

    pub(super) fn register(&mut self, now: Instant, request: &Request<'_>) -> Result<Vec<Vec<u8>>, Failure> {
        let mut record: Vec<u8> = request.wanted.iter().copied().take(Record::Service.len()).collect();
        record.resize(Record::Service.len(), 0);
        if request.mask & service::NEEDED != service::NEEDED {
            return Err(sa::STATUS_INSUFFICIENT_COMPONENTS);
        }
        if request.mask & 1 << 4 == 0 {
            service::LEASE.put(&mut record, FOR_EVER);
        }
        let lease = service::LEASE.get(&record);
        let end = (lease != FOR_EVER).then(|| now + Duration::from_secs(lease));
        match self.position(&record) {
            Some(at) => {
                if let Some(place) = self.0.get_mut(at) {
                    *place = (record.clone(), end);
                }
            }
            None if self.0.len() >= SERVICES => return Err(sa::STATUS_NO_RESOURCES),
            None => self.0.push((record.clone(), end)),
        }
        Ok(vec![without_key(&record)])
    }

    pub(super) fn remove(&mut self, request: &Request<'_>) -> Result<Vec<Vec<u8>>, Failure> {
        let at = self.position(request.wanted).ok_or(sa::STATUS_NO_RECORDS)?;
        Ok(vec![without_key(&self.0.swap_remove(at).0)])
    }

    pub(super) fn find(&self, request: &Request<'_>) -> Vec<Vec<u8>> {
        let all = self.0.iter().map(|(record, _)| record);
        all.filter(|record| Record::Service.matches(request.mask, request.wanted, record))
            .map(|record| without_key(record))
            .collect()
    }

    pub(super) fn expire(&mut self, now: Instant) {
        self.0.retain(|(_, end)| end.is_none_or(|end| end > now));
    }
}
