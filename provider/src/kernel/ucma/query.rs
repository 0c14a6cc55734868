//! `RDMA_USER_CM_CMD_QUERY`: addresses, GIDs and path of an id.
//!
//! librdmacm asks these where AF_IB addresses can be bound, which it tries first (`ucma_set_af_ib_support`); elsewhere
//! it asks for the route, which is all of them in one.

use std::net::SocketAddr;

use urxe_ffi::ucma;
use urxe_wire::Gid;

use super::abi::{self, AF_IB};
use crate::cm::query::Route;
use crate::cm::service_records::ServiceRecord;
use crate::kernel::Errno;

/// Size of `struct sockaddr_ib` (`<infiniband/ib.h>`).
pub(super) const SOCKADDR_IB: usize = 48;

/// Smallest response buffer that the kernel accepts: all but `ibdev_index`, a later field.
const LEAST_ROOM: usize = std::mem::offset_of!(ucma::rdma_ucm_query_addr_resp, ibdev_index);

/// `IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL` of `rdma/ib_user_sa.h`.
const PATH_FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;

/// "Exactly", in the two bits above an MTU, a rate and a lifetime (`IB_SA_EQ`).
const EXACTLY: u8 = 2 << 6;

/// `RDMA_USER_CM_QUERY_IB_SERVICE` (Linux 6.17).
pub(super) const IB_SERVICE: u32 = ucma::RDMA_USER_CM_QUERY_GID + 1;

/// Writes the number of services, and each, as far as there is room (`ucma_query_ib_service` of the kernel's ucma.c).
///
/// # Errors
/// ENOSPC for less room than the number takes.
pub(super) fn services(known: &[ServiceRecord], room: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = u32::try_from(known.len()).unwrap_or(u32::MAX).to_ne_bytes().to_vec();
    bytes.extend([0; 4]);
    let left = room.checked_sub(bytes.len()).ok_or(Errno(libc::ENOSPC))?;
    bytes.extend(known.iter().take(left / size_of::<ServiceRecord>()).flatten());
    Ok(bytes)
}

/// The answer to a query, as long as all of it is (`ucma_query` of the kernel's ucma.c).
///
/// # Errors
/// ENOSPC for less room than the kernel wants; ENOSYS for what cannot be asked.
pub(super) fn answer(option: u32, route: &Route, room: usize) -> Result<Vec<u8>, Errno> {
    let enough = |least| if room < least { Err(Errno(libc::ENOSPC)) } else { Ok(()) };
    match option {
        ucma::RDMA_USER_CM_QUERY_ADDR => {
            enough(LEAST_ROOM)?;
            Ok(abi::encode(&abi::addresses(route)).to_vec())
        }
        ucma::RDMA_USER_CM_QUERY_GID => {
            enough(LEAST_ROOM)?;
            Ok(abi::encode(&gids(route)).to_vec())
        }
        ucma::RDMA_USER_CM_QUERY_PATH => {
            enough(size_of::<ucma::rdma_ucm_query_path_resp>())?;
            Ok(paths(route, room))
        }
        _ => Err(Errno(libc::ENOSYS)),
    }
}

/// Both ends as `sockaddr_ib`.
fn gids(route: &Route) -> ucma::rdma_ucm_query_addr_resp {
    let mut resp = abi::addresses(&Route { src: None, dst: None, ..*route });
    let len = u16::try_from(SOCKADDR_IB).unwrap_or_default();
    let pkey = if route.node_guid == 0 { 0 } else { abi::PKEY };
    let end = |gid, address| (abi::storage(&sockaddr_ib(pkey, gid, route.space, address)), len);
    (resp.src_addr, resp.src_size) = end(route.path.sgid, route.src);
    (resp.dst_addr, resp.dst_size) = end(route.path.dgid, route.dst);
    resp
}

/// Family and P_Key, a flow label of 0, the GID, the service id; its mask and the scope stay 0.
fn sockaddr_ib(pkey: u16, gid: Gid, space: u16, address: Option<SocketAddr>) -> [u8; SOCKADDR_IB] {
    let service_id = u64::from(space) << 16 | address.map_or(0, |address| u64::from(address.port()));
    let mut bytes = [0; SOCKADDR_IB];
    let mut room = bytes.iter_mut();
    let fields: [&[u8]; 5] =
        [&AF_IB.to_ne_bytes(), &pkey.to_be_bytes(), &[0; 4], &gid.octets(), &service_id.to_be_bytes()];
    for (to, from) in room.by_ref().zip(fields.into_iter().flatten()) {
        *to = *from;
    }
    bytes
}

/// How many paths there are, and each, as far as there is room, as the subnet's administration would put it
/// (`ib_sa_pack_path`; IBA 15.2.5.16).
fn paths(route: &Route, room: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(u32::from(route.has_path).to_ne_bytes());
    bytes.extend([0; 4]);
    // More room than a path takes, as the kernel has it; librdmacm has six times that.
    if !route.has_path || room - bytes.len() <= size_of::<ucma::ib_path_rec_data>() {
        return bytes;
    }
    bytes.extend(PATH_FLAGS.to_ne_bytes());
    bytes.extend([0; 4]);
    let service_id = [0; 8];
    let path = &route.path;
    let [dlid, slid] = [path.dlid, path.slid].map(|lid| lid.0.to_be_bytes());
    let label_and_hop_limit = u32::from(path.hop_limit).to_be_bytes();
    // The upper bit says that the way back is the same; the rest would count paths.
    let reversible = 1 << 7;
    let class_and_sl = [0; 2];
    let record: [&[u8]; 10] = [
        &service_id,
        &path.dgid.octets(),
        &path.sgid.octets(),
        &dlid,
        &slid,
        &label_and_hop_limit,
        &[route.tclass, reversible],
        &abi::PKEY.to_be_bytes(),
        &class_and_sl,
        &[EXACTLY | route.mtu, EXACTLY | path.rate, EXACTLY | route.packet_life_time],
    ];
    bytes.extend(record.concat());
    // Preference, and what is reserved.
    bytes.extend([0; 7]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::cm::query::Path;

    const SRC: &str = "10.77.0.1:7471";
    const DST: &str = "10.77.0.2:40000";

    fn route(has_path: bool) -> Route {
        let gid = |address: &str| {
            let address: SocketAddr = address.parse().unwrap();
            (Some(address), Gid::from(address.ip()))
        };
        let ((src, sgid), (dst, dgid)) = (gid(SRC), gid(DST));
        let path = Path { sgid, dgid, hop_limit: 64, rate: 3, ..Path::default() };
        Route { node_guid: 5, src, dst, path, space: 0x0106, has_path, mtu: 3, tclass: 9, packet_life_time: 16 }
    }

    #[test]
    fn too_little_room() {
        for (option, least) in [(0, 272), (1, 8), (2, 272)] {
            assert_eq!(answer(option, &route(true), least - 1), Err(Errno(libc::ENOSPC)), "option {option}");
            assert!(answer(option, &route(true), least).is_ok(), "option {option}");
        }
        assert_eq!(answer(3, &route(true), 4096), Err(Errno(libc::ENOSYS)));
    }

    #[test]
    fn services_as_there_is_room() {
        let known = [[1; 176], [2; 176]];
        assert_eq!(services(&known, 7), Err(Errno(libc::ENOSPC)));
        for (room, count) in [(8, 0), (8 + 176, 1), (8 + 2 * 176 - 1, 1), (4096, 2)] {
            let bytes = services(&known, room).unwrap();
            assert_eq!((&bytes[..8], bytes.len()), (&[2, 0, 0, 0, 0, 0, 0, 0][..], 8 + count * 176), "{room}");
        }
    }

    #[test]
    fn ends_as_gids() {
        let route = route(true);
        let resp: ucma::rdma_ucm_query_addr_resp = abi::decode(&answer(2, &route, 288).unwrap());
        assert_eq!((resp.node_guid, resp.port_num, resp.src_size, resp.dst_size), (5, 1, 48, 48));
        let bytes = sockaddr_ib(abi::PKEY, route.path.sgid, route.space, route.src);
        assert_eq!(bytes[..8], [27, 0, 0xFF, 0xFF, 0, 0, 0, 0]);
        assert_eq!(bytes[8..24], route.path.sgid.octets());
        assert_eq!(bytes[24..32], [0, 0, 0, 0, 1, 6, 0x1D, 0x2F]);
        assert_eq!(bytes[32..], [0; 16]);
    }

    #[test]
    fn a_path() {
        assert_eq!(answer(1, &route(false), 440).unwrap(), [0; 8]);
        let route = route(true);
        assert_eq!(answer(1, &route, 8 + 72).unwrap(), [1, 0, 0, 0, 0, 0, 0, 0], "no room for it");
        let bytes = answer(1, &route, 440).unwrap();
        assert_eq!((bytes.len(), &bytes[..12]), (8 + 72, &[1, 0, 0, 0, 0, 0, 0, 0, 0x2B, 0, 0, 0][..]));
        let record = &bytes[16..];
        assert_eq!((&record[8..24], &record[24..40]), (&route.path.dgid.octets()[..], &route.path.sgid.octets()[..]));
        assert_eq!(record[40..57], [0, 0, 0, 0, 0, 0, 0, 64, 9, 0x80, 0xFF, 0xFF, 0, 0, 0x83, 0x83, 0x90]);
        assert_eq!(record[57..], [0; 7]);
    }
}
