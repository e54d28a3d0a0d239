//! The fake's multicast groups: on InfiniBand those of a subnet, whose manager names them.

use std::{collections::HashMap, io, net::IpAddr, sync::Arc};

use super::{FakeAddressHandle, FakeDevice, FakeManager};
use crate::{
    device::LinkLayer,
    path,
    verbs::{AddressHandle, Group, GroupAddress, GroupRequest, Verbs, VerbsError, group_gid},
};

/// The first LID of groups.
const FIRST_LID: u16 = 0xc000;

/// What the manager of a subnet knows: the groups, and how many are in each.
#[derive(Default)]
pub(super) struct Subnet {
    members: HashMap<GroupAddress, usize>,
    last: u16,
}

impl Subnet {
    /// A partition's group of that IP address, made if need be, with one more member.
    fn enter(&mut self, gid: [u8; 16]) -> GroupAddress {
        let known = self.members.keys().find(|group| group.gid == gid).copied();
        let address = known.unwrap_or_else(|| {
            self.last += 1;
            GroupAddress { gid, lid: FIRST_LID + self.last }
        });
        *self.members.entry(address).or_default() += 1;
        address
    }

    /// A group goes with its last member, and its LID with it.
    fn leave(&mut self, group: GroupAddress) {
        let members = self.members.get_mut(&group).expect("who leaves a group is in it");
        *members -= 1;
        if *members == 0 {
            self.members.remove(&group);
        }
    }

    pub(super) fn members(&self) -> usize {
        self.members.values().sum()
    }

    /// Whether a queue pair can be attached to it.
    pub(super) fn has(&self, group: GroupAddress, layer: LinkLayer) -> bool {
        layer != LinkLayer::InfiniBand || self.members.contains_key(&group)
    }
}

/// A GID like those that IP over InfiniBand has for groups: another one in each partition.
fn subnet_gid(group: IpAddr, partition_key: u16) -> [u8; 16] {
    let mut gid = group_gid(group);
    let form: u16 = if group.is_ipv4() { 0x401b } else { 0x601b };
    gid[..2].copy_from_slice(&[0xff, 0x12]);
    gid[2..4].copy_from_slice(&form.to_be_bytes());
    gid[4..6].copy_from_slice(&(partition_key | 0x8000).to_be_bytes());
    gid
}

/// A group that was joined.
pub struct FakeGroup {
    handle: FakeAddressHandle,
    address: GroupAddress,
    /// Whether through a connection manager, whose device it was.
    managed: Option<Arc<FakeDevice>>,
}

impl FakeGroup {
    pub(super) fn join(
        device: &Arc<FakeDevice>,
        request: &GroupRequest,
    ) -> Result<Self, VerbsError> {
        let infiniband = device.port.link_layer == LinkLayer::InfiniBand;
        let (address, managed) = match infiniband {
            true => (enter_subnet(device, request)?, Some(device.clone())),
            false => (GroupAddress { gid: group_gid(request.group), lid: 0 }, None),
        };
        let port = device.port_at(request.own);
        let route = path::by_gid(&port, address.gid, request.marks);
        device.fabric.lock().note_path(port, route);
        Ok(FakeGroup { handle: FakeAddressHandle::to(device, address), address, managed })
    }
}

fn enter_subnet(
    device: &Arc<FakeDevice>,
    request: &GroupRequest,
) -> Result<GroupAddress, VerbsError> {
    FakeManager::new(device)?;
    let mut state = device.fabric.lock();
    if state.exchange.faults.no_route {
        let (device, group) = (device.name.clone(), request.group);
        let source = io::Error::from_raw_os_error(libc::ETIMEDOUT);
        return Err(VerbsError::Group { device, group, source });
    }
    let gid = subnet_gid(request.group, device.port.partition_key);
    Ok(state.subnet.enter(gid))
}

impl Group for FakeGroup {
    fn name(&self) -> u64 {
        self.handle.name()
    }

    fn address(&self) -> GroupAddress {
        self.address
    }
}

impl Drop for FakeGroup {
    fn drop(&mut self) {
        if let Some(device) = &self.managed {
            device.fabric.lock().subnet.leave(self.address);
        }
    }
}
