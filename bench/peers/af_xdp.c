// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * AF_XDP by libxdp as C programs do it: one loop over four rings, in copy mode, which sleeps when there is nothing.
 *
 *   af_xdp rx INTERFACE LEDGER        frames that arrive at queue 0 are counted and given back
 *   af_xdp tx INTERFACE LEDGER BYTES  frames of so many bytes are sent while the ledger says so
 *   af_xdp packets INTERFACE LEDGER BYTES  the same by sendmmsg(2) on a packet socket
 *
 * LEDGER is a file of three 64-bit words that the bench shares: packets, whether to send, and whether this program
 * is ready.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <xdp/xsk.h>

enum { BUFFERS = 4096, SIZE = 2048, BATCH = 64 };

struct ledger {
	volatile uint64_t packets;
	volatile uint64_t go;
	volatile uint64_t ready;
};

static struct xsk_ring_prod fill, tx;
static struct xsk_ring_cons completion, rx;
static struct xsk_umem *umem;
static struct xsk_socket *sock;
static char *memory;

static void check(const char *what, int error)
{
	if (error) {
		fprintf(stderr, "%s: %s\n", what, strerror(error < 0 ? -error : error));
		exit(1);
	}
}

static void open_queue(const char *interface, int receives)
{
	struct xsk_umem_config memory_config = {
		.fill_size = BUFFERS, .comp_size = BUFFERS, .frame_size = SIZE,
	};
	struct xsk_socket_config config = {
		.rx_size = BUFFERS,
		.tx_size = BUFFERS,
		.libbpf_flags = receives ? 0 : XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD,
		.xdp_flags = XDP_FLAGS_DRV_MODE,
		.bind_flags = XDP_COPY | XDP_USE_NEED_WAKEUP,
	};

	memory = mmap(NULL, (size_t)BUFFERS * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check("memory", memory == MAP_FAILED ? errno : 0);
	check("umem", xsk_umem__create(&umem, memory, (uint64_t)BUFFERS * SIZE, &fill, &completion, &memory_config));
	check("socket", xsk_socket__create(&sock, interface, 0, umem, receives ? &rx : NULL, &tx, &config));
}

static void receive(struct ledger *ledger)
{
	struct pollfd wait = { .fd = xsk_socket__fd(sock), .events = POLLIN };
	uint32_t from, to;

	check("fill", xsk_ring_prod__reserve(&fill, BUFFERS, &to) != BUFFERS ? EINVAL : 0);
	for (uint32_t i = 0; i < BUFFERS; i++)
		*xsk_ring_prod__fill_addr(&fill, to++) = (uint64_t)i * SIZE;
	xsk_ring_prod__submit(&fill, BUFFERS);
	ledger->ready = 1;
	for (;;) {
		uint32_t count = xsk_ring_cons__peek(&rx, BATCH, &from);

		if (!count) {
			poll(&wait, 1, 5);
			continue;
		}
		/* As many as the pool has fit: there is room. */
		xsk_ring_prod__reserve(&fill, count, &to);
		for (uint32_t i = 0; i < count; i++)
			*xsk_ring_prod__fill_addr(&fill, to++) =
				xsk_umem__extract_addr(xsk_ring_cons__rx_desc(&rx, from++)->addr) & ~(uint64_t)(SIZE - 1);
		xsk_ring_prod__submit(&fill, count);
		xsk_ring_cons__release(&rx, count);
		ledger->packets += count;
		if (xsk_ring_prod__needs_wakeup(&fill))
			recvfrom(wait.fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
	}
}

static const unsigned char head[14] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 5, 8, 0 };

static void send_by_packet_socket(const char *interface, struct ledger *ledger, uint32_t bytes)
{
	static char frame[SIZE];
	struct sockaddr_ll to = {
		.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP), .sll_ifindex = (int)if_nametoindex(interface),
	};
	struct iovec whole = { .iov_base = frame, .iov_len = bytes };
	struct mmsghdr messages[BATCH] = { 0 };
	/* Protocol 0: it hears nothing. */
	int out = socket(AF_PACKET, SOCK_RAW, 0);

	check("packet socket", out < 0 ? errno : 0);
	memcpy(frame, head, sizeof(head));
	for (int i = 0; i < BATCH; i++) {
		messages[i].msg_hdr.msg_name = &to;
		messages[i].msg_hdr.msg_namelen = sizeof(to);
		messages[i].msg_hdr.msg_iov = &whole;
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	ledger->ready = 1;
	for (;;) {
		if (!ledger->go) {
			usleep(500);
			continue;
		}
		int sent = sendmmsg(out, messages, BATCH, 0);

		if (sent > 0)
			ledger->packets += (uint32_t)sent;
	}
}

static void send_all(struct ledger *ledger, uint32_t bytes)
{
	uint32_t at, next = 0, sending = 0;

	for (uint32_t i = 0; i < BUFFERS; i++) {
		memset(memory + (size_t)i * SIZE, 0, bytes);
		memcpy(memory + (size_t)i * SIZE, head, sizeof(head));
	}
	ledger->ready = 1;
	for (;;) {
		if (!ledger->go && !sending) {
			usleep(500);
			continue;
		}
		if (ledger->go && sending + BATCH <= BUFFERS && xsk_ring_prod__reserve(&tx, BATCH, &at) == BATCH) {
			for (int i = 0; i < BATCH; i++) {
				struct xdp_desc *frame = xsk_ring_prod__tx_desc(&tx, at++);

				*frame = (struct xdp_desc){ .addr = (uint64_t)next * SIZE, .len = bytes };
				next = (next + 1) % BUFFERS;
			}
			xsk_ring_prod__submit(&tx, BATCH);
			sending += BATCH;
		}
		if (xsk_ring_prod__needs_wakeup(&tx))
			sendto(xsk_socket__fd(sock), NULL, 0, MSG_DONTWAIT, NULL, 0);
		uint32_t done = xsk_ring_cons__peek(&completion, BATCH, &at);

		xsk_ring_cons__release(&completion, done);
		sending -= done;
		ledger->packets += done;
	}
}

int main(int count, char **words)
{
	if (count < 4)
		check("af_xdp rx|tx|packets INTERFACE LEDGER [BYTES]", EINVAL);
	int receives = !strcmp(words[1], "rx");
	int file = open(words[3], O_RDWR);

	check(words[3], file < 0 ? errno : 0);
	struct ledger *ledger = mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	check("ledger", ledger == MAP_FAILED ? errno : 0);
	uint32_t bytes = count > 4 ? (uint32_t)atoi(words[4]) : 64;

	if (!strcmp(words[1], "packets"))
		send_by_packet_socket(words[2], ledger, bytes);
	open_queue(words[2], receives);
	if (receives)
		receive(ledger);
	else
		send_all(ledger, bytes);
	return 0;
}
