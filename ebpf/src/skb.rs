//! The packet as the kernel hands it over. In: a `__sk_buff`. Out: bounds-checked reads, and the kernel's
//! helpers as functions with typed results.

use aya_ebpf::{
    bindings::{
        __sk_buff, BPF_F_RECOMPUTE_CSUM, BPF_F_TUNINFO_IPV6, BPF_F_ZERO_CSUM_TX, bpf_fib_lookup,
        bpf_tunnel_key,
    },
    helpers::generated as helper,
    programs::TcContext,
};
use podwire_core::{
    abi::{Generation, Mode, Reason, TargetRow, limits},
    stage::{Counters, Facts, Packet, Tables, Tag, leave::Remote},
    wire::{ethernet, ipv4, ipv6},
};

use crate::{maps, tables::AS_IT_IS};

/// A frame at a TC hook.
#[derive(Clone, Copy)]
pub struct Skb(*mut __sk_buff);

const TUNNEL_TTL: u8 = 64;

/// IPv4's checksum once the time to live is one less (RFC 1624 equation 3).
#[inline(always)]
const fn after_hop(sum: [u8; 2]) -> [u8; 2] {
    let sum = u16::from_be_bytes(sum) as u32 + 0x0100;
    ((sum + (sum >= 0xffff) as u32) as u16).to_be_bytes()
}

#[inline(always)]
const fn from_words(w: [u32; 4]) -> [u8; 16] {
    let (a, b, c, d) = (w[0].to_ne_bytes(), w[1].to_ne_bytes(), w[2].to_ne_bytes(), w[3].to_ne_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3]]
}

#[inline(always)]
pub const fn to_words(b: [u8; 16]) -> [u32; 4] {
    [
        u32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
        u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
        u32::from_ne_bytes([b[8], b[9], b[10], b[11]]),
        u32::from_ne_bytes([b[12], b[13], b[14], b[15]]),
    ]
}

/// The tunnel that a frame came by.
#[derive(Clone, Copy)]
pub struct Tunnel {
    pub vni: u32,
    pub remote: Remote,
    /// DSCP value of the outer header: that of a traced packet is its trace's tag.
    pub tag: u8,
}

/// Where the kernel would send a packet.
pub enum Path {
    /// By this device, to the neighbour whose address is in `smac` and `dmac`.
    Resolved { ifindex: u32, mtu: u32, source_mac: [u8; 6], destination_mac: [u8; 6] },
    /// By this device; the neighbour's address is not known yet.
    Unresolved { ifindex: u32, mtu: u32 },
    /// It would not fit: the largest IP packet that does, in bytes.
    TooBig { mtu: u32 },
    /// Nowhere.
    NoRoute,
}

/// Whether a frame fits a device.
pub enum Fit {
    Fits,
    /// The device's MTU, in bytes of the network layer.
    TooBig {
        mtu: u32,
    },
    DeviceMissing,
}

/// IPv4 addresses and length of a packet to route, addresses in network order.
pub struct Route {
    pub family: u8,
    pub source: [u32; 4],
    pub destination: [u32; 4],
    pub tos: u8,
    pub total_len: u16,
    /// The device that the packet counts as received on.
    pub ifindex: u32,
}

impl Skb {
    #[inline(always)]
    pub fn new(ctx: &TcContext) -> Self {
        Self(ctx.skb.skb)
    }

    /// The frame behind the pointer that a global function was given.
    #[inline(always)]
    pub fn from_raw(skb: *mut __sk_buff) -> Self {
        Self(skb)
    }

    /// The pointer to give to a global function.
    #[inline(always)]
    pub fn as_raw(self) -> *mut __sk_buff {
        self.0
    }

    #[inline(always)]
    pub fn mark(self) -> u32 {
        // SAFETY: the context pointer is valid for the program's run.
        unsafe { (*self.0).mark }
    }

    #[inline(always)]
    pub fn set_mark(self, mark: u32) {
        // SAFETY: as above; the verifier allows writes to this field.
        unsafe { (*self.0).mark = mark }
    }

    /// `skb->tc_index`, 16 bits.
    #[inline(always)]
    pub fn tag(self) -> Tag {
        // SAFETY: as above.
        Tag(unsafe { (*self.0).tc_index })
    }

    /// Sets `skb->tc_index`, and the class that the kernel copies to it should a later program of the hook end
    /// it.
    #[inline(always)]
    pub fn set_tag(self, tag: Tag) {
        // SAFETY: as above; the verifier allows writes to these fields.
        unsafe {
            (*self.0).tc_index = tag.0;
            (*self.0).tc_classid = tag.0;
        }
    }

    /// `skb->priority`.
    #[inline(always)]
    pub fn priority(self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.0).priority }
    }

    /// Sets `skb->priority`.
    #[inline(always)]
    pub fn set_priority(self, priority: u32) {
        // SAFETY: as above.
        unsafe { (*self.0).priority = priority }
    }

    #[inline(always)]
    pub fn ifindex(self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.0).ifindex }
    }

    /// Payload bytes per segment of a super-packet, 0 for any other packet.
    #[inline(always)]
    pub fn gso_size(self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.0).gso_size }
    }

    /// The VLAN tag that the kernel keeps beside the frame: protocol and TCI in host order.
    #[inline(always)]
    pub fn vlan(self) -> Option<(u16, u16)> {
        // SAFETY: as above.
        let (present, protocol, tci) =
            unsafe { ((*self.0).vlan_present, (*self.0).vlan_proto, (*self.0).vlan_tci) };
        if present == 0 { None } else { Some((u16::from_be(protocol as u16), tci as u16)) }
    }

    /// Makes the headers readable in place. Pulling is skipped when they are already in the linear part: it
    /// would copy the head of a cloned packet, and more than headers must never be pulled from a GSO packet.
    #[inline(always)]
    pub fn pull_headers(self) {
        let wanted = self.frame_len().min(limits::HEADER_WINDOW as u32);
        // SAFETY: as above.
        let (data, end) = unsafe { ((*self.0).data as usize, (*self.0).data_end as usize) };
        if data + (wanted as usize) > end {
            // SAFETY: as above. A failure leaves the packet as it was, and reads end where it ends.
            unsafe { helper::bpf_skb_pull_data(self.0, wanted) };
        }
    }

    /// Clones the frame to the egress of a device. `Ok`: the device took it. `Err(n)` below zero: no such
    /// device; above zero: it is down or its queue refused the frame.
    #[inline(always)]
    pub fn clone_redirect(self, ifindex: u32) -> Result<(), i64> {
        // SAFETY: as above.
        match unsafe { helper::bpf_clone_redirect(self.0, ifindex, 0) } {
            0 => Ok(()),
            error => Err(error),
        }
    }

    /// Hands the frame to the kernel's neighbour layer on a device when the program returns the value.
    #[inline(always)]
    pub fn redirect_neigh(ifindex: u32) -> i32 {
        // SAFETY: a null parameter makes the helper take the next hop from its own route lookup.
        unsafe { helper::bpf_redirect_neigh(ifindex, core::ptr::null_mut(), 0, 0) as i32 }
    }

    /// Cuts the frame to `len` bytes. The kernel linearises it and ends its life as a super-packet.
    #[inline(always)]
    pub fn truncate(self, len: u32) -> bool {
        // SAFETY: as above.
        unsafe { helper::bpf_skb_change_tail(self.0, len, 0) == 0 }
    }

    /// Removes the outermost VLAN tag, wherever it is kept.
    #[inline(always)]
    pub fn pop_vlan(self) -> bool {
        // SAFETY: as above.
        unsafe { helper::bpf_skb_vlan_pop(self.0) == 0 }
    }

    /// Makes room between the Ethernet header and the network header.
    #[inline(always)]
    pub fn make_room(self, bytes: u32, flags: u64) -> bool {
        // SAFETY: as above.
        unsafe {
            helper::bpf_skb_adjust_room(
                self.0,
                bytes as i32,
                aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
                flags,
            ) == 0
        }
    }

    /// Removes bytes behind the Ethernet header.
    #[inline(always)]
    pub fn remove_room(self, bytes: u32, flags: u64) -> bool {
        // SAFETY: as above.
        unsafe {
            helper::bpf_skb_adjust_room(
                self.0,
                -(bytes as i32),
                aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
                flags,
            ) == 0
        }
    }

    /// Copies `len` bytes from the frame's start.
    ///
    /// # Safety
    /// `len` must be between 1 and `N`.
    #[inline(always)]
    pub unsafe fn load_head<const N: usize>(self, bytes: &mut [u8; N], len: u32) -> bool {
        // SAFETY: the caller's promise.
        unsafe { helper::bpf_skb_load_bytes(self.0.cast(), 0, bytes.as_mut_ptr().cast(), len) == 0 }
    }

    /// Copies `len` bytes from `offset` on to the start of `bytes`.
    ///
    /// # Safety
    /// `len` must be between 1 and `N`.
    #[inline(always)]
    pub unsafe fn load_part<const N: usize>(self, offset: u32, bytes: &mut [u8; N], len: u32) -> bool {
        // SAFETY: the caller's promise.
        unsafe { helper::bpf_skb_load_bytes(self.0.cast(), offset, bytes.as_mut_ptr().cast(), len) == 0 }
    }

    /// Makes room before the Ethernet header.
    #[inline(always)]
    pub fn make_head_room(self, bytes: u32) -> bool {
        // SAFETY: as above.
        unsafe { helper::bpf_skb_change_head(self.0, bytes, 0) == 0 }
    }

    /// Copies `N` bytes of the frame.
    #[inline(always)]
    pub fn load<const N: usize>(self, offset: u32) -> Option<[u8; N]> {
        let mut bytes = [0u8; N];
        // SAFETY: the buffer is N bytes long.
        let result =
            unsafe { helper::bpf_skb_load_bytes(self.0.cast(), offset, bytes.as_mut_ptr().cast(), N as u32) };
        if result == 0 { Some(bytes) } else { None }
    }

    /// Writes the first `len` bytes of `bytes` at the start of the frame. The caller has bounded `len`.
    ///
    /// # Safety
    /// `len` must be between 1 and `N`.
    #[inline(always)]
    pub unsafe fn store<const N: usize>(self, bytes: &[u8; N], len: u32) -> bool {
        // SAFETY: the caller's promise.
        unsafe { helper::bpf_skb_store_bytes(self.0.cast(), 0, bytes.as_ptr().cast(), len, 0) == 0 }
    }

    /// Writes the two addresses of the Ethernet header.
    #[inline(always)]
    pub fn store_macs(self, destination: &[u8; 6], source: &[u8; 6]) -> bool {
        let (d, s) = (destination, source);
        let macs = [d[0], d[1], d[2], d[3], d[4], d[5], s[0], s[1], s[2], s[3], s[4], s[5]];
        // SAFETY: the length is the array's.
        unsafe { self.store(&macs, 12) }
    }

    /// Whether the kernel takes the frame for IPv6.
    #[inline(always)]
    pub fn is_v6(self) -> bool {
        // SAFETY: the context pointer is valid for the program's run.
        unsafe { (*self.0).protocol == ethernet::ETHER_TYPE_IPV6.to_be() as u32 }
    }

    /// One hop further, for a frame without tags: its addresses, and one taken from the time to live or the hop limit.
    ///
    /// Written in place, where a helper would cost as much for each field. The kernel sees to it that a program which
    /// writes in place has the head for itself (`bpf_unclone_prologue`).
    #[inline(always)]
    pub fn next_hop(self, destination: &[u8; 6], source: &[u8; 6]) -> bool {
        const AT: usize = ethernet::HEADER_LEN;
        /// To the end of IPv4's checksum; IPv6's hop limit stands before it.
        const LEN: usize = AT + ipv4::CHECKSUM_OFFSET + 2;
        // SAFETY: the context pointer is valid for the program's run.
        let (data, end) = unsafe { ((*self.0).data as usize, (*self.0).data_end as usize) };
        if data + LEN > end {
            return self.hop() && self.store_macs(destination, source);
        }
        let frame = data as *mut u8;
        // SAFETY: the length was just compared.
        unsafe {
            frame.cast::<[u8; 6]>().write_unaligned(*destination);
            frame.add(6).cast::<[u8; 6]>().write_unaligned(*source);
            if self.is_v6() {
                let limit = frame.add(AT + ipv6::HOP_LIMIT_OFFSET);
                *limit = (*limit).wrapping_sub(1);
                // One less in the upper byte of a little-endian half, or the lower one of a big-endian half.
                self.adjust_sum(!(u16::from_ne_bytes([0, 1]) as u32));
            } else {
                let ttl = frame.add(AT + ipv4::TTL_OFFSET);
                *ttl = (*ttl).wrapping_sub(1);
                let sum = frame.add(AT + ipv4::CHECKSUM_OFFSET).cast::<[u8; 2]>();
                sum.write_unaligned(after_hop(sum.read_unaligned()));
            }
        }
        true
    }

    /// Adds to the kernel's sum over the packet, where a network card made one: the hop limit of IPv6 has no checksum of
    /// its own that would make up for the change.
    #[inline(always)]
    fn adjust_sum(self, difference: u32) {
        // SAFETY: as above. Without such a sum the helper refuses, and nothing is amiss.
        unsafe { helper::bpf_csum_update(self.0, difference) };
    }

    /// Takes one from the time to live or the hop limit of a frame without tags.
    #[inline(always)]
    fn hop(self) -> bool {
        const AT: u32 = ethernet::HEADER_LEN as u32;
        if !self.is_v6() {
            let Some([ttl, protocol, high, low]) = self.load::<4>(AT + ipv4::TTL_OFFSET as u32) else {
                return false;
            };
            let [high, low] = after_hop([high, low]);
            self.write(AT + ipv4::TTL_OFFSET as u32, &[ttl.wrapping_sub(1), protocol, high, low])
        } else {
            let Some([limit]) = self.load::<1>(AT + ipv6::HOP_LIMIT_OFFSET as u32) else {
                return false;
            };
            self.write(AT + ipv6::HOP_LIMIT_OFFSET as u32, &[limit.wrapping_sub(1)])
        }
    }

    /// Writes bytes behind the Ethernet header, and tells the kernel's sum over the packet, where a network card made
    /// one: the hop limit of IPv6 has no checksum of its own that would make up for the change.
    #[inline(always)]
    fn write<const N: usize>(self, offset: u32, bytes: &[u8; N]) -> bool {
        let flags = BPF_F_RECOMPUTE_CSUM as u64;
        // SAFETY: the length is the array's.
        unsafe {
            helper::bpf_skb_store_bytes(self.0.cast(), offset, bytes.as_ptr().cast(), N as u32, flags) == 0
        }
    }

    /// The tunnel that the frame came by.
    #[inline(always)]
    pub fn tunnel(self) -> Option<Tunnel> {
        // SAFETY: all-zero is a valid value of this plain C structure.
        let mut key: bpf_tunnel_key = unsafe { core::mem::zeroed() };
        for flags in [0, BPF_F_TUNINFO_IPV6 as u64] {
            // SAFETY: the structure is as large as said.
            let result = unsafe {
                helper::bpf_skb_get_tunnel_key(self.0, &mut key, size_of::<bpf_tunnel_key>() as u32, flags)
            };
            if result != 0 {
                continue;
            }
            // SAFETY: both members of the union are plain numbers.
            let (v4, v6) = unsafe { (key.__bindgen_anon_1.remote_ipv4, key.__bindgen_anon_1.remote_ipv6) };
            // IPv4's number is in host order, IPv6's words are as on the wire.
            let words = if flags == 0 { [v4.to_be(), 0, 0, 0] } else { v6 };
            let remote = Remote { address: from_words(words), v4: flags == 0 };
            return Some(Tunnel { vni: key.tunnel_id, remote, tag: key.tunnel_tos >> 2 });
        }
        None
    }

    /// Gives the packet that `facts` is about another DSCP value (RFC 2474); its ECN bits stay.
    #[inline(always)]
    pub fn set_dscp(self, facts: &Facts, dscp: u8) -> bool {
        let at = facts.network_offset;
        match facts.mode {
            Mode::V4 => {
                let Some([version, tos]) = self.load::<2>(at) else {
                    return false;
                };
                let new = dscp << 2 | tos & 3;
                let (from, to) = (u16::from_ne_bytes([version, tos]), u16::from_ne_bytes([version, new]));
                let sum = at + ipv4::CHECKSUM_OFFSET as u32;
                // The header and its checksum change together: a sum over the packet stays as it is.
                // SAFETY: the context pointer is valid for the program's run; the length is the array's.
                unsafe {
                    helper::bpf_l3_csum_replace(self.0, sum, from as u64, to as u64, 2) == 0
                        && helper::bpf_skb_store_bytes(
                            self.0.cast(),
                            at + ipv4::TOS_OFFSET as u32,
                            (&raw const new).cast(),
                            1,
                            0,
                        ) == 0
                }
            }
            Mode::V6 => {
                let Some([high, low]) = self.load::<2>(at) else {
                    return false;
                };
                self.write(at, &[high & 0xf0 | dscp >> 2, low & 0x3f | dscp << 6])
            }
            Mode::Other => false,
        }
    }

    /// Whether the frame's tunnel is known already.
    #[inline(always)]
    pub fn has_tunnel(self) -> bool {
        self.tunnel().is_some()
    }

    /// Says by which tunnel the frame goes, and with which DSCP value.
    #[inline(always)]
    pub fn set_tunnel(self, target: &TargetRow, vni: u32, tag: u8) -> bool {
        // SAFETY: all-zero is a valid value of this plain C structure.
        let mut key: bpf_tunnel_key = unsafe { core::mem::zeroed() };
        key.tunnel_id = vni;
        key.tunnel_ttl = TUNNEL_TTL;
        key.tunnel_tos = tag << 2;
        let words = to_words(target.remote);
        // A checksum over IPv4's payload is not needed: the inner packet has its own.
        let flags = if target.family == 4 {
            key.__bindgen_anon_1.remote_ipv4 = u32::from_be(words[0]);
            BPF_F_ZERO_CSUM_TX
        } else {
            key.__bindgen_anon_1.remote_ipv6 = words;
            BPF_F_TUNINFO_IPV6
        };
        // SAFETY: the structure is as large as said.
        unsafe {
            helper::bpf_skb_set_tunnel_key(self.0, &mut key, size_of::<bpf_tunnel_key>() as u32, flags as u64)
                == 0
        }
    }

    /// Writes the Ethernet header.
    #[inline(always)]
    pub fn store_link(self, link: &[u8; ethernet::HEADER_LEN]) -> bool {
        // SAFETY: the length is the array's.
        unsafe { self.store(link, ethernet::HEADER_LEN as u32) }
    }

    /// Whether the frame fits a device as it is. Super-packets fit: they are cut later.
    #[inline(always)]
    pub fn check_mtu(self, ifindex: u32) -> Fit {
        let mut mtu = 0u32;
        // SAFETY: `mtu` outlives the call.
        match unsafe { helper::bpf_check_mtu(self.0.cast(), ifindex, &mut mtu, 0, 0) } {
            0 => Fit::Fits,
            error if error < 0 => Fit::DeviceMissing,
            _ => Fit::TooBig { mtu },
        }
    }

    /// Asks the kernel for the route and the neighbour of a packet.
    #[inline(always)]
    pub fn route(self, route: &Route) -> Path {
        // SAFETY: all-zero is a valid value of this plain C structure.
        let mut fib: bpf_fib_lookup = unsafe { core::mem::zeroed() };
        fib.family = route.family;
        fib.ifindex = route.ifindex;
        fib.__bindgen_anon_1.tot_len = route.total_len;
        fib.__bindgen_anon_2.tos = route.tos;
        fib.__bindgen_anon_3.ipv6_src = route.source;
        fib.__bindgen_anon_4.ipv6_dst = route.destination;
        // SAFETY: the structure is as large as said.
        let result =
            unsafe { helper::bpf_fib_lookup(self.0.cast(), &mut fib, size_of::<bpf_fib_lookup>() as i32, 0) };
        // SAFETY: both members of the union are plain numbers.
        let mtu = unsafe { fib.__bindgen_anon_1.mtu_result } as u32;
        match result as u32 {
            aya_ebpf::bindings::BPF_FIB_LKUP_RET_SUCCESS => {
                Path::Resolved { ifindex: fib.ifindex, mtu, source_mac: fib.smac, destination_mac: fib.dmac }
            }
            aya_ebpf::bindings::BPF_FIB_LKUP_RET_NO_NEIGH => Path::Unresolved { ifindex: fib.ifindex, mtu },
            aya_ebpf::bindings::BPF_FIB_LKUP_RET_FRAG_NEEDED => Path::TooBig { mtu },
            _ => Path::NoRoute,
        }
    }
}

impl Skb {
    /// [`Packet::facts`] where they stand, read now unless an earlier program has just done so.
    #[inline(always)]
    pub fn facts_in_place(self, is_read: bool) -> Option<&'static Facts> {
        if !is_read {
            crate::global::parse_frame(self.0);
        }
        maps::FACTS.get(AS_IT_IS)
    }
}

impl Packet for Skb {
    #[inline(always)]
    fn facts(&self) -> Facts {
        self.facts_in_place(false).copied().unwrap_or(Facts::NONE)
    }

    #[inline(always)]
    fn has_tag_beside(&self) -> bool {
        self.vlan().is_some()
    }

    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        match maps::NUMBER.get_ptr_mut(0) {
            // SAFETY: a per-CPU row of this program's own; volatile, so that it is read back.
            Some(row) => unsafe {
                row.write_volatile(number);
                row.read_volatile()
            },
            None => number,
        }
    }

    #[inline(always)]
    fn judge<T: Tables + Counters>(
        &self,
        generation: Generation,
        slot: u32,
        _: &Facts,
        _: &T,
    ) -> Option<Reason> {
        Reason::from_number(crate::global::judge_frame(self.0, slot, generation.bank()).checked_sub(1)?)
    }

    #[inline(always)]
    fn frame_len(&self) -> u32 {
        // SAFETY: the context pointer is valid for the program's run.
        unsafe { (*self.0).len }
    }

    #[inline(always)]
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        if offset > limits::HEADER_WINDOW - N {
            return None;
        }
        // SAFETY: as above. The two pointers bound the linear part of the frame, and the verifier insists on
        // the comparison that follows.
        let (data, end) = unsafe { ((*self.0).data as usize, (*self.0).data_end as usize) };
        let start = data + offset;
        if start + N > end {
            return None;
        }
        // SAFETY: N bytes from `start` lie within the frame.
        Some(unsafe { *(start as *const [u8; N]) })
    }
}
