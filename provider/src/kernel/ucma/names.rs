//! Names of groups and services in commands.

use std::net::{IpAddr, SocketAddr};

use urxe_ffi::ucma;
use urxe_wire::Gid;

use super::abi;
use crate::cm::groups::GroupName;
use crate::cm::membership::Role;
use crate::cm::services::WantedService;
use crate::kernel::Errno;

/// The group of an address: an IPv6 one may have the signature of an MGID (`cma_set_mgid` of the kernel's cma.c).
pub(super) fn group_name(address: SocketAddr) -> GroupName {
    match address.ip() {
        IpAddr::V6(ip) if ip.to_bits() >> 96 & 0xFFF0_FFFF == 0xFF10_A01B => GroupName::Mgid(Gid::new(ip.octets())),
        ip => GroupName::Ip(ip),
    }
}

/// The group in a `sockaddr_storage`. EINVAL without one.
pub(super) fn storage_group(address: &ucma::__kernel_sockaddr_storage) -> Result<GroupName, Errno> {
    // SAFETY: the structure's memory.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(address).cast::<u8>(), size_of_val(address)) };
    if bytes.starts_with(&abi::AF_IB.to_ne_bytes()) {
        let gid = bytes.get(8..).and_then(<[u8]>::first_chunk).ok_or(Errno(libc::EINVAL))?;
        return Ok(GroupName::Mgid(Gid::new(*gid)));
    }
    Ok(group_name(abi::parse(bytes)?.ok_or(Errno(libc::EINVAL))?))
}

/// Kind of a membership (`RDMA_MC_JOIN_FLAG_FULLMEMBER`, `_SENDONLY_FULLMEMBER` of `rdma/rdma_user_cm.h`).
pub(super) fn role(join_flags: u16) -> Result<Role, Errno> {
    match join_flags {
        0 => Ok(Role::Full),
        1 => Ok(Role::SendOnly),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// `struct rdma_ucm_resolve_ib_service`, behind the id: service id, name, flags (Linux 6.17).
pub(super) fn wanted_service(body: &[u8]) -> Result<WantedService, Errno> {
    let field = |at: usize| body.get(at..).ok_or(Errno(libc::EINVAL));
    let id = field(8)?.first_chunk().ok_or(Errno(libc::EINVAL))?;
    let name = field(16)?.first_chunk().ok_or(Errno(libc::EINVAL))?;
    let flags = field(80)?.first_chunk().ok_or(Errno(libc::EINVAL))?;
    let flags = u32::from_ne_bytes(*flags);
    let has = |flag: u32| flags & flag != 0;
    Ok(WantedService { id: has(1).then(|| u64::from_ne_bytes(*id)), name: has(1 << 1).then_some(*name) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_each_family() {
        let name = |address: &str| group_name(address.parse().unwrap());
        let mgid = |text: &str| GroupName::Mgid(Gid::new(text.parse::<std::net::Ipv6Addr>().unwrap().octets()));
        assert_eq!(name("239.1.2.3:5"), GroupName::Ip([239, 1, 2, 3].into()));
        assert_eq!(name("[ff02::1]:5"), GroupName::Ip("ff02::1".parse().unwrap()));
        assert_eq!(name("[ff1e:a01b::7]:5"), mgid("ff1e:a01b::7"), "the signature of an MGID");
        let storage = |bytes: &[u8]| storage_group(&abi::storage(bytes));
        let mut ib = [0; 48];
        (ib[0], ib[8], ib[9], ib[23]) = (27, 0xFF, 0x12, 9);
        assert_eq!(storage(&ib), Ok(mgid("ff12::9")));
        assert_eq!(storage(&[2, 0, 0, 5, 239, 1, 2, 3]), Ok(GroupName::Ip([239, 1, 2, 3].into())));
        assert_eq!(storage(&[0; 16]), Err(Errno(libc::EINVAL)));
        assert_eq!([0, 1, 2].map(role), [Ok(Role::Full), Ok(Role::SendOnly), Err(Errno(libc::EINVAL))]);
    }

    #[test]
    fn services_by_id_or_by_name() {
        let mut body = [0; 88];
        body[8..16].copy_from_slice(&7_u64.to_ne_bytes());
        body[16..19].copy_from_slice(b"abc");
        let wanted = |flags: u32, mut body: [u8; 88]| {
            body[80..84].copy_from_slice(&flags.to_ne_bytes());
            wanted_service(&body).map(|wanted| (wanted.id, wanted.name.map(|name| name[..4].to_vec())))
        };
        assert_eq!(wanted(1, body), Ok((Some(7), None)));
        assert_eq!(wanted(2, body), Ok((None, Some(b"abc\0".to_vec()))));
        assert_eq!(wanted(3, body), Ok((Some(7), Some(b"abc\0".to_vec()))));
        assert_eq!(wanted_service(&body[..83]).err(), Some(Errno(libc::EINVAL)));
    }
}
