//! Typed handles of the maps. In: rows of `podwire_core::abi`. Out: what the kernel has.
//!
//! The only file of the library with `unsafe`: it tells aya which types may be copied to and from the kernel
//! byte by byte.

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, PerCpuValues, ProgramArray, RingBuf};
use podwire_core::abi::{
    AddressRow, CaptureRow, ChunkRow, ConfigRow, EgressCounters, EgressRow, EndpointCounters, EndpointRow,
    FlowKey, FlowRow, GuardCounters, KernelRow, LiveRow, MatchBlock, MatchRow, NetworkRow, NodeRow,
    ObservationCounters, ObservationRow, OverlayCounters, PolicyCounters, PolicyRow, PrefixRow, Reason,
    RelayRow, RulesetRow, SessionCounters, SessionRow, SpanRow, TargetRow, TraceKey, TraceRow, TripKey,
    TripRow, TunnelKey, WatchRow, limits,
};

use crate::error::{Context, Error, ErrorKind};
use crate::pins::Pins;

/// A row as aya copies it.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Row<T>(pub(crate) T);

/// Types that may be copied byte by byte: `repr(C)`, without padding (asserted in `abi::layout`), any bytes
/// are a value.
pub(crate) trait Plain: Copy + PartialEq + 'static {}

macro_rules! plain {
    ($($kind:ty),* $(,)?) => {
        $(impl Plain for $kind {})*
    };
}

plain!(ChunkRow, ConfigRow, EndpointCounters, EndpointRow, NodeRow, PrefixRow, RulesetRow, SessionCounters);
plain!(SessionRow, SpanRow, PolicyRow, PolicyCounters, LiveRow, FlowKey, FlowRow, TripKey, TripRow);
plain!(TunnelKey, RelayRow, GuardCounters, u64);
plain!(KernelRow, NetworkRow, TargetRow, EgressRow, AddressRow, EgressCounters);
plain!(WatchRow, TraceKey, TraceRow, ObservationRow, ObservationCounters);
plain!(MatchRow, MatchBlock, CaptureRow, u32);
plain!(podwire_core::xsk::ConfigRow, podwire_core::xsk::IdKey);

// SAFETY: `Plain` is implemented for such types only, here above.
unsafe impl<T: Plain> aya::Pod for Row<T> {}

/// An array of rows.
pub(crate) struct Table<T: Plain> {
    name: &'static str,
    map: Array<MapData, Row<T>>,
}

impl<T: Plain> Table<T> {
    fn take(bpf: &mut Ebpf, name: &'static str) -> Result<Self, Error> {
        let map = take_map(bpf, name)?;
        Ok(Self { name, map: Array::try_from(map).context(|| format!("map {name}"))? })
    }

    /// A second handle of a pinned map, for another thread.
    pub(crate) fn reopen(pins: &Pins, name: &'static str) -> Result<Self, Error> {
        let data = MapData::from_pin(pins.map(name)).context(|| format!("opening map {name}"))?;
        Ok(Self { name, map: Array::try_from(Map::Array(data)).context(|| format!("map {name}"))? })
    }

    pub(crate) fn get(&self, index: u32) -> Result<T, Error> {
        self.map
            .get(&index, 0)
            .map(|row| row.0)
            .context(|| format!("reading row {index} of map {}", self.name))
    }

    pub(crate) fn set(&mut self, index: u32, row: T) -> Result<(), Error> {
        self.map.set(index, Row(row), 0).context(|| format!("writing row {index} of map {}", self.name))
    }

    /// Writes rows from `base` on and reads them back.
    pub(crate) fn fill(&mut self, base: u32, rows: &[T]) -> Result<(), Error> {
        for (index, row) in (base..).zip(rows) {
            self.set(index, *row)?;
        }
        for (index, row) in (base..).zip(rows) {
            if self.get(index)? != *row {
                let what = format!("row {index} of map {} does not read back as written", self.name);
                return Err(Error::new(ErrorKind::Kernel, what));
            }
        }
        Ok(())
    }
}

/// An array of counters, one row per CPU.
pub(crate) struct CpuTable<T: Plain> {
    name: &'static str,
    map: PerCpuArray<MapData, Row<T>>,
    cpus: usize,
}

impl<T: Plain> CpuTable<T> {
    fn take(bpf: &mut Ebpf, name: &'static str, cpus: usize) -> Result<Self, Error> {
        let map = take_map(bpf, name)?;
        Ok(Self { name, map: PerCpuArray::try_from(map).context(|| format!("map {name}"))?, cpus })
    }

    /// A second handle of a pinned map, for another thread.
    pub(crate) fn reopen(pins: &Pins, name: &'static str) -> Result<Self, Error> {
        let data = MapData::from_pin(pins.map(name)).context(|| format!("opening map {name}"))?;
        let map = PerCpuArray::try_from(Map::PerCpuArray(data)).context(|| format!("map {name}"))?;
        Ok(Self { name, map, cpus: cpus()? })
    }

    /// The rows of all CPUs.
    pub(crate) fn get(&self, index: u32) -> Result<Vec<T>, Error> {
        let rows = self.map.get(&index, 0).context(|| format!("reading row {index} of map {}", self.name))?;
        Ok(rows.iter().map(|row| row.0).collect())
    }

    pub(crate) fn reset(&mut self, index: u32, zero: T) -> Result<(), Error> {
        let rows = PerCpuValues::try_from(vec![Row(zero); self.cpus])
            .context(|| format!("rows for {} CPUs", self.cpus))?;
        self.map.set(index, rows, 0).context(|| format!("clearing row {index} of map {}", self.name))
    }
}

/// All maps that user space reads or writes.
pub(crate) struct Maps {
    pub(crate) config: Table<ConfigRow>,
    interfaces: Array<MapData, u32>,
    far_interfaces: HashMap<MapData, u32, u32>,
    pub(crate) endpoints: Table<EndpointRow>,
    pub(crate) rulesets: Table<RulesetRow>,
    pub(crate) nodes: Table<NodeRow>,
    pub(crate) prefixes: Table<PrefixRow>,
    pub(crate) chunks: Table<ChunkRow>,
    pub(crate) spans: Table<SpanRow>,
    pub(crate) sessions: Table<SessionRow>,
    pub(crate) endpoint_counters: CpuTable<EndpointCounters>,
    pub(crate) guard_counters: CpuTable<GuardCounters>,
    pub(crate) session_counters: CpuTable<SessionCounters>,
    pub(crate) relay_counters: Table<SessionCounters>,
    pub(crate) policies: Table<PolicyRow>,
    pub(crate) policy_counters: CpuTable<PolicyCounters>,
    pub(crate) network: Table<NetworkRow>,
    pub(crate) targets: Table<TargetRow>,
    pub(crate) egresses: Table<EgressRow>,
    pub(crate) egress_addresses: Table<AddressRow>,
    pub(crate) egress_ids: HashMap<MapData, u32, u32>,
    pub(crate) egress_counters: CpuTable<EgressCounters>,
    pub(crate) overlay_counters: CpuTable<OverlayCounters>,
    pub(crate) stages: ProgramArray<MapData>,
    pub(crate) live: Table<LiveRow>,
    pub(crate) sequences: Table<u64>,
    pub(crate) paces: Table<u64>,
    pub(crate) clock: Table<u64>,
    pub(crate) flows: HashMap<MapData, Row<FlowKey>, Row<FlowRow>>,
    pub(crate) trips: HashMap<MapData, Row<TripKey>, Row<TripRow>>,
    pub(crate) return_ports: HashMap<MapData, u32, u32>,
    pub(crate) return_tunnels: HashMap<MapData, Row<TunnelKey>, u32>,
    /// For the user-space encapsulator, which takes it.
    ring: Option<RingBuf<MapData>>,
    /// For the reader of captured frames, which takes it.
    frames: Option<RingBuf<MapData>>,
    reason_counters: PerCpuArray<MapData, u64>,
}

/// Names of all maps: all are pinned, so that programs of two releases share them during an upgrade.
pub(crate) const NAMES: &[&str] = &[
    "CONFIG",
    "INTERFACES",
    "FAR_INTERFACES",
    "ENDPOINTS",
    "RULESETS",
    "NODES",
    "PREFIXES",
    "CHUNKS",
    "SPANS",
    "SESSIONS",
    "POLICIES",
    "LIVE",
    "SEQUENCES",
    "PACES",
    "CLOCK",
    "FLOWS",
    "TRIPS",
    "RETURN_PORTS",
    "RETURN_TUNNELS",
    "RELAY",
    "FRAMES",
    "RELAY_COUNTERS",
    "FACTS",
    "JOB",
    "NUMBER",
    "PACKET",
    "RECORD",
    "COPY",
    "HEADERS",
    "ENDPOINT_COUNTERS",
    "GUARD_COUNTERS",
    "NETWORK",
    "TARGETS",
    "EGRESSES",
    "EGRESS_ADDRESSES",
    "EGRESS_IDS",
    "EGRESS_COUNTERS",
    "OVERLAY_COUNTERS",
    "DELIVERY",
    "STAGES",
    "SESSION_COUNTERS",
    "POLICY_COUNTERS",
    "REASON_COUNTERS",
    "WATCH",
    "TRACES",
    "OBSERVATIONS",
    "DROPS",
    "OBSERVATION",
    "OBSERVATION_COUNTERS",
    "HELD",
    "HELD_COUNT",
    "MATCH_BLOCKS",
    "MATCHES",
    "CAPTURES",
    "KERNEL",
    "KERNEL_DRAFT",
];

impl Maps {
    pub(crate) fn take(bpf: &mut Ebpf) -> Result<Self, Error> {
        let cpus = cpus()?;
        let interfaces = take_map(bpf, "INTERFACES")?;
        let reasons = take_map(bpf, "REASON_COUNTERS")?;
        Ok(Self {
            config: Table::take(bpf, "CONFIG")?,
            interfaces: Array::try_from(interfaces).context(|| "map INTERFACES".into())?,
            far_interfaces: take_hash(bpf, "FAR_INTERFACES")?,
            endpoints: Table::take(bpf, "ENDPOINTS")?,
            rulesets: Table::take(bpf, "RULESETS")?,
            nodes: Table::take(bpf, "NODES")?,
            prefixes: Table::take(bpf, "PREFIXES")?,
            chunks: Table::take(bpf, "CHUNKS")?,
            spans: Table::take(bpf, "SPANS")?,
            sessions: Table::take(bpf, "SESSIONS")?,
            endpoint_counters: CpuTable::take(bpf, "ENDPOINT_COUNTERS", cpus)?,
            guard_counters: CpuTable::take(bpf, "GUARD_COUNTERS", cpus)?,
            session_counters: CpuTable::take(bpf, "SESSION_COUNTERS", cpus)?,
            relay_counters: Table::take(bpf, "RELAY_COUNTERS")?,
            policies: Table::take(bpf, "POLICIES")?,
            policy_counters: CpuTable::take(bpf, "POLICY_COUNTERS", cpus)?,
            network: Table::take(bpf, "NETWORK")?,
            targets: Table::take(bpf, "TARGETS")?,
            egresses: Table::take(bpf, "EGRESSES")?,
            egress_addresses: Table::take(bpf, "EGRESS_ADDRESSES")?,
            egress_ids: take_hash(bpf, "EGRESS_IDS")?,
            egress_counters: CpuTable::take(bpf, "EGRESS_COUNTERS", cpus)?,
            overlay_counters: CpuTable::take(bpf, "OVERLAY_COUNTERS", cpus)?,
            stages: ProgramArray::try_from(take_map(bpf, "STAGES")?).context(|| "map STAGES".into())?,
            live: Table::take(bpf, "LIVE")?,
            sequences: Table::take(bpf, "SEQUENCES")?,
            paces: Table::take(bpf, "PACES")?,
            clock: Table::take(bpf, "CLOCK")?,
            flows: take_hash(bpf, "FLOWS")?,
            trips: take_hash(bpf, "TRIPS")?,
            return_ports: take_hash(bpf, "RETURN_PORTS")?,
            return_tunnels: take_hash(bpf, "RETURN_TUNNELS")?,
            ring: Some(RingBuf::try_from(take_map(bpf, "RELAY")?).context(|| "map RELAY".into())?),
            frames: Some(RingBuf::try_from(take_map(bpf, "FRAMES")?).context(|| "map FRAMES".into())?),
            reason_counters: PerCpuArray::try_from(reasons).context(|| "map REASON_COUNTERS".into())?,
        })
    }

    /// The ring to the user-space encapsulator, once.
    pub(crate) fn take_relay(&mut self) -> Result<RingBuf<MapData>, Error> {
        self.ring.take().ok_or_else(|| missing("RELAY"))
    }

    /// The ring of captured frames, once.
    pub(crate) fn take_frames(&mut self) -> Result<RingBuf<MapData>, Error> {
        self.frames.take().ok_or_else(|| missing("FRAMES"))
    }

    /// Slot of the endpoint behind an interface.
    pub(crate) fn interface_slot(&self, ifindex: u32) -> Result<Option<u32>, Error> {
        let stored = if ifindex < limits::DIRECT_INTERFACES {
            self.interfaces.get(&ifindex, 0)
        } else {
            match self.far_interfaces.get(&ifindex, 0) {
                Err(aya::maps::MapError::KeyNotFound) => Ok(0),
                other => other,
            }
        };
        stored
            .map(|slot| slot.checked_sub(1))
            .context(|| format!("reading the endpoint of interface {ifindex}"))
    }

    /// Says which endpoint is behind an interface, or none.
    pub(crate) fn set_interface_slot(&mut self, ifindex: u32, slot: Option<u32>) -> Result<(), Error> {
        let stored = slot.map_or(0, |slot| slot + 1);
        let result = if ifindex < limits::DIRECT_INTERFACES {
            self.interfaces.set(ifindex, stored, 0)
        } else if stored == 0 {
            match self.far_interfaces.remove(&ifindex) {
                Err(aya::maps::MapError::KeyNotFound) => Ok(()),
                other => other,
            }
        } else {
            self.far_interfaces.insert(ifindex, stored, 0)
        };
        result.context(|| format!("naming the endpoint of interface {ifindex}"))
    }

    /// Packets by reason, summed over CPUs.
    pub(crate) fn reason(&self, reason: Reason) -> Result<u64, Error> {
        let rows = self
            .reason_counters
            .get(&(reason.index() as u32), 0)
            .context(|| format!("reading the counter of reason {}", reason.as_str()))?;
        Ok(rows.iter().sum())
    }
}

fn take_map(bpf: &mut Ebpf, name: &str) -> Result<aya::maps::Map, Error> {
    bpf.take_map(name).ok_or_else(|| missing(name))
}

fn take_hash<K: aya::Pod, V: aya::Pod>(
    bpf: &mut Ebpf,
    name: &'static str,
) -> Result<HashMap<MapData, K, V>, Error> {
    HashMap::try_from(take_map(bpf, name)?).context(|| format!("map {name}"))
}

/// A second handle of a pinned map, for another thread.
pub(crate) fn reopen_hash<K: Plain, V: Plain>(
    pins: &Pins,
    name: &'static str,
) -> Result<HashMap<MapData, Row<K>, Row<V>>, Error> {
    let data = MapData::from_pin(pins.map(name)).context(|| format!("opening map {name}"))?;
    HashMap::try_from(Map::HashMap(data)).context(|| format!("map {name}"))
}

/// A handle of a pinned ring. Each record is read by one of its handles only.
pub(crate) fn reopen_ring(pins: &Pins, name: &'static str) -> Result<RingBuf<MapData>, Error> {
    let data = MapData::from_pin(pins.map(name)).context(|| format!("opening map {name}"))?;
    RingBuf::try_from(Map::RingBuf(data)).context(|| format!("map {name}"))
}

fn cpus() -> Result<usize, Error> {
    aya::util::nr_cpus()
        .map_err(|(what, error)| Error::caused(ErrorKind::Kernel, format!("counting CPUs ({what})"), error))
}

/// Reads the row at the head of a record; `None` when the record is shorter.
pub(crate) fn read_head<T: Plain>(record: &[u8]) -> Option<T> {
    let bytes = record.get(..size_of::<T>())?;
    // SAFETY: as many bytes as the row has, and any bytes are a row (`Plain`).
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

fn missing(name: &str) -> Error {
    Error::new(ErrorKind::ForeignState, format!("the BPF object has no map {name}"))
}
