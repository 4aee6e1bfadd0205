//! Every map of the XDP program; see `podwire_core::xsk`.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, DevMap, HashMap, LruHashMap, XskMap},
    macros::btf_map,
};
use podwire_core::xsk::{self, ConfigRow, FragmentKey, IdKey, QueueRow};

#[btf_map(name = "XSK_CONFIG")]
pub static CONFIG: Array<ConfigRow, 1> = Array::new();

#[btf_map(name = "XSK_QUEUES")]
pub static QUEUES: Array<QueueRow, { xsk::QUEUES as usize }, { BPF_F_MMAPABLE as usize }> = Array::new();

#[btf_map(name = "XSK_SOCKETS")]
pub static SOCKETS: XskMap<{ xsk::QUEUES as usize }> = XskMap::new();

#[btf_map(name = "XSK_IDS")]
pub static IDS: HashMap<IdKey, u32, { xsk::IDS as usize }> = HashMap::new();

#[btf_map(name = "XSK_FRAGMENTS")]
pub static FRAGMENTS: LruHashMap<FragmentKey, u64, { xsk::FRAGMENTS as usize }> = LruHashMap::new();

#[btf_map(name = "XSK_BYPASS")]
pub static BYPASS: DevMap<1> = DevMap::new();
