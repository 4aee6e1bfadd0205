//! A frame at the XDP hook. Bytes are read where they lie: in the first buffer.

use aya_ebpf::{EbpfContext, helpers::generated as helper, programs::XdpContext};
use podwire_core::xsk::{IdKey, Window};

use crate::maps;

pub struct Frame<'a> {
    ctx: &'a XdpContext,
}

impl<'a> Frame<'a> {
    #[inline(always)]
    pub fn of(ctx: &'a XdpContext) -> Self {
        Self { ctx }
    }

    /// Bytes of all its buffers.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        // SAFETY: the context is the program's own.
        unsafe { helper::bpf_xdp_get_buff_len(self.ctx.as_ptr().cast()) as u32 }
    }
}

impl Window for Frame<'_> {
    #[inline(always)]
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let start = self.ctx.data() + offset;
        if start + N > self.ctx.data_end() {
            return None;
        }
        // SAFETY: the bytes lie between the frame's start and its end.
        Some(unsafe { (start as *const [u8; N]).read_unaligned() })
    }

    #[inline(always)]
    fn wanted(&self, key: &IdKey) -> bool {
        maps::IDS.get_ptr(key).is_some()
    }
}
