//! The provider: what opens shared-memory transports, and what they are set up
//! with.

use std::{net::IpAddr, sync::Arc, time::Duration};

use kestrel_core::{
    config::{CHUNKS_BYTES_MAX, CmaPolicy, Config, LaneChunks},
    error::{Cause, Errno},
    fork_guard,
    transport::{Limits, Opening, Provider, Purpose},
};

use crate::{
    catalogue,
    chunk::ChunkPool,
    copy::{self, Copier},
    group_table::GroupTables,
    lane::{GIVEN_BYTES, OwnChunks},
    region::PoolMemory,
    station::{Station, StationOptions},
    transport::{Groups, ShmTransport},
};

/// What is longer goes in several packets, unless the chunks are shorter. Units: bytes.
const SINGLE_MAX: usize = 8 << 10;
/// What is longer is shown to a receiver that waits while it is copied in. Units: bytes.
const SHORT: usize = 3 << 10;
/// A message of this length or more is left for its receiver to read. Below, two copies through
/// the pool take less than the system call. Units: bytes.
const SINGLE_COPY: usize = 9 << 10;
/// The same in a stream, where both copies go on at once. Units: bytes.
const SINGLE_COPY_STREAMING: usize = 32 << 10;

/// How transports are set up.
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// The IP address of endpoints that ask for none.
    pub default_ip: IpAddr,
    /// The key of endpoints that are given none: those with different keys refuse each other.
    pub auth_key: Vec<u8>,
    /// Bytes of a chunk; a multiple of 4 KiB.
    pub chunk_bytes: usize,
    /// Chunks of an endpoint's pool.
    pub chunk_count: usize,
    /// Which copy routines: `auto`, or as [`Copier::choose`] names them.
    pub copy: String,
    /// What goes through chunks that lanes have of their own.
    pub lane_chunks: LaneChunks,
    /// Whether the kernel may copy between processes, and does where packets would be faster.
    pub cma: CmaPolicy,
    /// How long connecting may take.
    pub connect_timeout: Duration,
}

impl Default for ShmOptions {
    fn default() -> Self {
        ShmOptions::from(&Config::default())
    }
}

impl ShmOptions {
    /// The longest message that is one packet. Units: bytes.
    pub fn single_max(&self) -> usize {
        self.chunk_bytes.min(SINGLE_MAX)
    }

    /// Why lanes cannot have the chunks of their own that are asked for, if so.
    pub fn lane_chunks_misfit(&self) -> Option<&'static str> {
        let (fits, are_given) =
            (ChunkPool::fits_lane(self.chunk_bytes), self.chunk_bytes >= GIVEN_BYTES);
        match self.lane_chunks {
            LaneChunks::On | LaneChunks::Turns if !fits => Some(
                "a pair has no chunks of more than 64 KiB, and FI_KESTREL_CHUNK_SIZE asks for them",
            ),
            LaneChunks::Turns if !are_given => Some(
                "chunks of less than 32 KiB do not go to and fro, and FI_KESTREL_CHUNK_SIZE asks for them",
            ),
            _ => None,
        }
    }
}

impl From<&Config> for ShmOptions {
    fn from(config: &Config) -> Self {
        ShmOptions {
            default_ip: crate::own_ip(),
            auth_key: Vec::new(),
            chunk_bytes: config.chunk_size,
            chunk_count: config.chunk_count,
            copy: config.copy.into(),
            lane_chunks: config.lane_chunks,
            cma: config.cma,
            connect_timeout: Duration::from_millis(config.connect_timeout_ms),
        }
    }
}

/// Opens shared-memory transports.
pub struct ShmProvider {
    options: ShmOptions,
    copier: Copier,
    lane_chunks: OwnChunks,
    generation: u32,
    groups: Arc<GroupTables>,
}

impl ShmProvider {
    /// A provider with these options; the copy routines are chosen now.
    pub fn new(options: ShmOptions) -> Result<ShmProvider, Cause> {
        let copier = Copier::choose(&options.copy)
            .map_err(|error| Cause { errno: Errno::INVAL, reason: error.to_string() })?;
        let sound = options.chunk_bytes.is_multiple_of(4096)
            && (4096..=1 << 24).contains(&options.chunk_bytes)
            && (2..=1 << 16).contains(&options.chunk_count)
            && options.chunk_bytes * options.chunk_count <= CHUNKS_BYTES_MAX;
        if !sound {
            let reason = format!(
                "{} chunks of {} bytes: a chunk has a multiple of 4096 bytes, at most 16 MiB, and \
                 a pool 2 to 65536 of them, and 64 GiB at most",
                options.chunk_count, options.chunk_bytes
            );
            return Err(Cause { errno: Errno::INVAL, reason });
        }
        Ok(ShmProvider {
            copier,
            lane_chunks: match options.lane_chunks {
                LaneChunks::Auto if copy::gains_by_lines_back() => OwnChunks::All,
                LaneChunks::On => OwnChunks::All,
                LaneChunks::Auto | LaneChunks::Turns => OwnChunks::Turns,
                LaneChunks::Off => OwnChunks::None,
            },
            options,
            generation: fork_guard::generation(),
            groups: Arc::default(),
        })
    }

    /// The copy routines in use.
    pub fn copier(&self) -> &Copier {
        &self.copier
    }
}

impl Provider for ShmProvider {
    type Transport = ShmTransport;

    fn open_as(&self, opening: Opening<'_>) -> Result<ShmTransport, Cause> {
        let Opening {
            address, auth_key, keys_follow, incarnation, service, purpose, admits, ..
        } = opening;
        let own = if auth_key.is_empty() { &self.options.auth_key[..] } else { auth_key };
        let bytes = self.options.chunk_bytes * self.options.chunk_count;
        let memory =
            PoolMemory::with_chunks(bytes, catalogue::BYTES).map_err(|error| Cause::of(&error))?;
        let in_lanes = self.lane_chunks == OwnChunks::All;
        // Who has one peer would make as many pages for that one as others for all of theirs.
        let is_for_one = purpose != Purpose::Peers;
        if is_for_one || in_lanes && ChunkPool::fits_lane(self.options.chunk_bytes) {
            memory.leave_pages();
        }
        let pool = ChunkPool::new(&memory, self.options.chunk_bytes);
        let station = Station::open(StationOptions {
            address: address.map(|address| address.socket_addr()),
            default_ip: self.options.default_ip,
            auth_key: own.to_vec(),
            keys_follow,
            service,
            admits,
            incarnation,
            pool: memory,
            connect_timeout: self.options.connect_timeout,
            cma: self.options.cma != CmaPolicy::Off,
        })
        .map_err(|error| Cause::of(&error))?;
        let limits = Limits {
            short: self.options.single_max().min(SHORT),
            single: self.options.single_max(),
            fragment: self.options.chunk_bytes,
            prefix: 64 << 10,
            single_copy: SINGLE_COPY,
            single_copy_streaming: SINGLE_COPY_STREAMING,
            contested: self.options.cma == CmaPolicy::Auto,
        };
        let groups = Groups::new(self.groups.clone(), own);
        Ok(ShmTransport::new(station, pool, self.lane_chunks, self.copier, limits, groups))
    }

    #[inline(always)]
    fn forked(&self) -> bool {
        fork_guard::forked(self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_no_peer_would_map_is_refused() {
        let refused = |chunk_bytes: usize, chunk_count: usize| {
            let options = ShmOptions { chunk_bytes, chunk_count, ..ShmOptions::default() };
            ShmProvider::new(options).err().map(|error| error.errno)
        };
        assert_eq!(refused(1 << 20, 1 << 16), None);
        assert_eq!(refused(1 << 24, 1 << 16), Some(Errno::INVAL));
        assert_eq!(refused(1 << 20, 1), Some(Errno::INVAL));
    }
}
