//! The provider: endpoints at one address of both sides.

use std::net::{IpAddr, Ipv4Addr};

use kestrel_core::{
    address::Address,
    error::{Cause, Errno},
    transport::{Bell, Opening, Provider, Service, Transport},
};

use super::{
    Composite,
    bell::Bells,
    far::Far,
    here::{is_beside, is_here},
};

/// Ports that are tried until one is free on both sides.
const PORT_ATTEMPTS: usize = 64;

/// Which peers the far side is for, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// Those that are not on this host.
    Both,
    /// All.
    Far,
}

/// Opens endpoints on two transports, or on the near one alone.
pub struct CompositeProvider<N, F> {
    near: N,
    far: Result<(F, Policy), Cause>,
}

impl<N: Provider, F: Provider> CompositeProvider<N, F> {
    /// Peers of this host through `near`, others through `far`.
    pub fn both(near: N, far: F) -> Self {
        CompositeProvider { near, far: Ok((far, Policy::Both)) }
    }

    /// All peers through `far`, those of this host as well.
    pub fn far_only(near: N, far: F) -> Self {
        CompositeProvider { near, far: Ok((far, Policy::Far)) }
    }

    /// Peers of this host alone; `why` is what others are answered.
    pub fn near_only(near: N, why: Cause) -> Self {
        CompositeProvider { near, far: Err(why) }
    }

    /// The near side.
    pub fn near(&self) -> &N {
        &self.near
    }

    /// The far side, or why there is none.
    pub fn far(&self) -> Result<&F, &Cause> {
        self.far.as_ref().map(|(far, _)| far)
    }

    fn open_near(
        &self,
        wanted: Opening<'_>,
        why: Cause,
    ) -> Result<Composite<N::Transport, F::Transport>, Cause> {
        let near = self.near.open_as(wanted)?;
        Ok(Composite::new(near, None, Some(why)))
    }

    /// All peers are far: the near side is at an address that nobody is told, and admits nobody.
    fn open_far(
        &self,
        far: &F,
        wanted: Opening<'_>,
    ) -> Result<Composite<N::Transport, F::Transport>, Cause> {
        let far = far.open_as(wanted)?;
        let hidden = Address::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let admits: Option<fn(Address, Address) -> bool> = Some(|_, _| false);
        let near = Opening { address: Some(hidden), incarnation: None, admits, ..wanted };
        join(self.near.open_as(near)?, far, wanted.service, Policy::Far)
    }

    /// The far side reserves the port, and the near one takes the same. A far side that does not
    /// have that address, or cannot be opened now, does not keep peers of this host apart.
    fn open_both(
        &self,
        far: &F,
        wanted: Opening<'_>,
    ) -> Result<Composite<N::Transport, F::Transport>, Cause> {
        let incarnation = Some(wanted.incarnation.map_or_else(random_incarnation, Ok)?);
        let wanted = Opening { incarnation, ..wanted };
        let is_ours_to_choose = wanted.address.is_none_or(|address| address.port() == 0);
        // Held until a free one is found, so that none is tried twice.
        let mut taken = Vec::new();
        loop {
            let far = match far.open_as(wanted) {
                Ok(far) => far,
                Err(error) if error.errno == Errno::ADDRINUSE => return Err(error),
                Err(error) => {
                    tracing::warn!("this endpoint serves this host alone: {}", error.reason);
                    return self.open_near(wanted, error);
                }
            };
            let admits: Option<fn(Address, Address) -> bool> = Some(is_beside);
            let beside = Opening { address: Some(far.address()), admits, ..wanted };
            match self.near.open_as(beside) {
                Ok(near) => return join(near, far, wanted.service, Policy::Both),
                Err(error) => {
                    let again = is_ours_to_choose && error.errno == Errno::ADDRINUSE;
                    if !again || taken.len() >= PORT_ATTEMPTS {
                        return Err(error);
                    }
                    taken.push(far);
                }
            }
        }
    }
}

fn join<N: Transport, F: Transport>(
    near: N,
    far: F,
    service: Service,
    policy: Policy,
) -> Result<Composite<N, F>, Cause> {
    let bells = Bells::join(&near, &far)?;
    Ok(Composite::new(near, Some(Box::new(Far::new(far, bells, service, policy))), None))
}

/// Refuses an address of another host. Shared memory would take any, as a name, and nobody who
/// looks for it elsewhere would find it.
fn check_is_here(address: Option<Address>) -> Result<(), Cause> {
    match address.filter(|it| it.names_a_host() && !is_here(*it)) {
        Some(address) => {
            let reason = format!("{address} is no address of this host");
            Err(Cause { errno: Errno::ADDRNOTAVAIL, reason })
        }
        None => Ok(()),
    }
}

fn random_incarnation() -> Result<u64, Cause> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(
        |errno| {
            let reason = format!("no random number: {errno}");
            Cause { errno: Errno(errno.raw_os_error()), reason }
        },
    )?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}

impl<N: Provider, F: Provider> Provider for CompositeProvider<N, F> {
    type Transport = Composite<N::Transport, F::Transport>;

    fn open_as(&self, wanted: Opening<'_>) -> Result<Self::Transport, Cause> {
        check_is_here(wanted.address)?;
        match &self.far {
            Err(why) => self.open_near(wanted, why.clone()),
            Ok((far, Policy::Far)) => self.open_far(far, wanted),
            Ok((far, Policy::Both)) if wanted.apart => self.open_far(far, wanted),
            Ok((far, Policy::Both)) => self.open_both(far, wanted),
        }
    }

    fn new_bell(&self) -> Result<Box<dyn Bell>, Cause> {
        self.near.new_bell()
    }

    /// Peers that are near have their processors play.
    fn adapter_atomics(&self) -> bool {
        matches!(&self.far, Ok((far, Policy::Far)) if far.adapter_atomics())
    }

    fn can_be_apart(&self) -> bool {
        self.far.is_ok()
    }

    #[inline(always)]
    fn forked(&self) -> bool {
        self.near.forked()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use kestrel_core::{
        mock::{MockOptions, MockProvider},
        transport::TransportEvent,
    };
    use kestrel_shm::{ShmOptions, ShmProvider};

    use super::*;

    /// Nobody is told where its near side is, but it can be found out.
    #[test]
    fn who_is_reached_by_its_device_alone_admits_nobody_near() {
        let shm = || ShmProvider::new(ShmOptions::default()).unwrap();
        let far = MockProvider::new(MockOptions::default());
        let open = CompositeProvider::far_only(shm(), far).open(None, &[]).unwrap();
        let mut other = shm().open(None, &[]).unwrap();
        other.connect(0, open.near.address());
        let start = Instant::now();
        let event = loop {
            if let Some(event) = other.event() {
                break event;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no answer");
        };
        assert!(matches!(event, TransportEvent::Failed { .. }), "{event:?}");
    }
}
