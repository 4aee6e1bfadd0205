//! Typed handles of the maps. In: rows of `podwire_core::abi`. Out: what the kernel has.
//!
//! The only file of the library with `unsafe`: it tells aya which types may be copied to and from the kernel
//! byte by byte.

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, PerCpuArray, PerCpuValues};
use podwire_core::abi::{
    ChunkRow, ConfigRow, EndpointCounters, EndpointRow, NodeRow, PrefixRow, Reason, RulesetRow,
    SessionCounters, SessionRow, SpanRow, limits,
};

use crate::error::{Context, Error, ErrorKind};

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
plain!(SessionRow, SpanRow);

// SAFETY: `Plain` is implemented for such types only, here above.
unsafe impl<T: Plain> aya::Pod for Row<T> {}

/// An array of rows.
pub(crate) struct Table<T: Plain> {
    name: &'static str,
    map: Array<MapData, Row<T>>,
}

impl<T: Plain> Table<T> {
    fn take(bpf: &mut Ebpf, name: &'static str) -> Result<Self, Error> {
        let map = bpf.take_map(name).ok_or_else(|| missing(name))?;
        Ok(Self { name, map: Array::try_from(map).context(|| format!("map {name}"))? })
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
        let map = bpf.take_map(name).ok_or_else(|| missing(name))?;
        Ok(Self { name, map: PerCpuArray::try_from(map).context(|| format!("map {name}"))?, cpus })
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
    pub(crate) session_counters: CpuTable<SessionCounters>,
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
    "COPY",
    "HEADERS",
    "ENDPOINT_COUNTERS",
    "SESSION_COUNTERS",
    "REASON_COUNTERS",
];

impl Maps {
    pub(crate) fn take(bpf: &mut Ebpf) -> Result<Self, Error> {
        let cpus = aya::util::nr_cpus().map_err(|(what, error)| {
            Error::caused(ErrorKind::Kernel, format!("counting CPUs ({what})"), error)
        })?;
        let interfaces = bpf.take_map("INTERFACES").ok_or_else(|| missing("INTERFACES"))?;
        let far = bpf.take_map("FAR_INTERFACES").ok_or_else(|| missing("FAR_INTERFACES"))?;
        let reasons = bpf.take_map("REASON_COUNTERS").ok_or_else(|| missing("REASON_COUNTERS"))?;
        Ok(Self {
            config: Table::take(bpf, "CONFIG")?,
            interfaces: Array::try_from(interfaces).context(|| "map INTERFACES".into())?,
            far_interfaces: HashMap::try_from(far).context(|| "map FAR_INTERFACES".into())?,
            endpoints: Table::take(bpf, "ENDPOINTS")?,
            rulesets: Table::take(bpf, "RULESETS")?,
            nodes: Table::take(bpf, "NODES")?,
            prefixes: Table::take(bpf, "PREFIXES")?,
            chunks: Table::take(bpf, "CHUNKS")?,
            spans: Table::take(bpf, "SPANS")?,
            sessions: Table::take(bpf, "SESSIONS")?,
            endpoint_counters: CpuTable::take(bpf, "ENDPOINT_COUNTERS", cpus)?,
            session_counters: CpuTable::take(bpf, "SESSION_COUNTERS", cpus)?,
            reason_counters: PerCpuArray::try_from(reasons).context(|| "map REASON_COUNTERS".into())?,
        })
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

fn missing(name: &str) -> Error {
    Error::new(ErrorKind::ForeignState, format!("the BPF object has no map {name}"))
}
