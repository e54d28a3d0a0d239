//! The transports of a scalable endpoint: one for each pair of contexts, at consecutive ports.

use crate::{
    address::Address,
    error::{Cause, Errno},
    transport::{Opening, Provider, Transport},
};

/// Rows of ports that are tried until all of one are free.
const ROW_ATTEMPTS: usize = 64;

/// Opens a transport for each pair, at consecutive ports.
pub(super) fn open_row<P: Provider>(
    provider: &P,
    opening: Opening<'_>,
    count: usize,
) -> Result<Vec<P::Transport>, Cause> {
    let is_ours_to_choose = opening.address.is_none_or(|address| address.port() == 0);
    // Held until a row is found, so that none is tried twice.
    let mut taken = Vec::new();
    loop {
        let mut row = vec![provider.open_as(opening)?];
        match extend(provider, opening, &mut row, count) {
            Ok(()) => return Ok(row),
            Err(error) => {
                let again = is_ours_to_choose && error.errno == Errno::ADDRINUSE;
                if !again || taken.len() >= ROW_ATTEMPTS {
                    return Err(error);
                }
                row.truncate(1);
                taken.append(&mut row);
            }
        }
    }
}

fn extend<P: Provider>(
    provider: &P,
    opening: Opening<'_>,
    row: &mut Vec<P::Transport>,
    count: usize,
) -> Result<(), Cause> {
    let first = row[0].address();
    while row.len() < count {
        let next = place_in_row(first, row.len(), count)?;
        row.push(open_at(provider, opening, next)?);
    }
    Ok(())
}

/// Opens what a row at `address` has beside those of `row`, one of as many ports: nothing where
/// one of them is there already.
pub(super) fn open_beside<P: Provider>(
    provider: &P,
    opening: Opening<'_>,
    row: &[Address],
    address: Address,
) -> Result<Vec<Option<P::Transport>>, Cause> {
    let opened = (0..row.len()).map(|index| {
        let next = place_in_row(address, index, row.len())?;
        (!row.contains(&next)).then(|| open_at(provider, opening, next)).transpose()
    });
    opened.collect()
}

pub(super) fn open_at<P: Provider>(
    provider: &P,
    opening: Opening<'_>,
    address: Address,
) -> Result<P::Transport, Cause> {
    provider.open_as(Opening { address: Some(address), ..opening })
}

fn place_in_row(first: Address, index: usize, count: usize) -> Result<Address, Cause> {
    context_address(first, index as u64).ok_or_else(|| Cause {
        errno: Errno::ADDRINUSE,
        reason: format!("there are no {count} ports from {first} on"),
    })
}

/// Where the pair of contexts `index` of the endpoint at `address` is.
pub(crate) fn context_address(address: Address, index: u64) -> Option<Address> {
    let port = u64::from(address.port()).checked_add(index)?;
    Some(address.with_port(u16::try_from(port).ok()?))
}

/// Whose pair of contexts `index` is at `address`.
pub(crate) fn endpoint_address(address: Address, index: u64) -> Option<Address> {
    let port = u64::from(address.port()).checked_sub(index).filter(|&port| port > 0)?;
    Some(address.with_port(port as u16))
}
