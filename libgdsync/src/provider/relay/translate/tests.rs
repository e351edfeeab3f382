//! Requests of verbs for the entries that this library writes, and completion entries for the
//! statuses of verbs.

use mlx5_prm::wqe::{Payload, Remote, SendWqe, Sge, SliceSink, encode_recv};

use super::*;
use crate::status::Status;

const RING: RingMemory = RingMemory {
    addr: 0x10_0000,
    len: 4096,
    lkey: 0x77,
};
const REMOTE: Remote = Remote {
    addr: 0xdead_beef_0000,
    rkey: 0x1234,
};
const SGES: [Sge; 2] = [sge(0x2000, 5, 100), sge(0x9000, 6, 7)];

const fn sge(addr: u64, lkey: u32, len: u32) -> Sge {
    Sge { addr, lkey, len }
}

/// A request without other data, to no remote address.
fn wqe(opcode: SendOpcode, payload: Payload<'_>) -> SendWqe<'_> {
    SendWqe {
        opcode,
        payload,
        ..SendWqe::default()
    }
}

/// An entry that writes these pieces, in the entry itself, to [`REMOTE`].
fn written_inline(parts: &[&[u8]]) -> Vec<u8> {
    encode(&SendWqe {
        remote: Some(REMOTE),
        ..wqe(SendOpcode::RDMA_WRITE, Payload::Inline(parts))
    })
}

fn pieces(sges: &[Sge]) -> Vec<ibv_sge> {
    let piece = |sge: &Sge| ibv_sge {
        addr: sge.addr,
        length: sge.len,
        lkey: sge.lkey,
    };
    sges.iter().map(piece).collect()
}

fn encode(wqe: &SendWqe<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    let encoded = wqe
        .encode(9, 0x42, &mut SliceSink::new(&mut bytes))
        .expect("it can be encoded");
    bytes.truncate(usize::from(encoded.ds) * 16);
    bytes
}

const MOST: Most = Most {
    sges: 30,
    inline: 0,
};

type Translated = Result<Option<(ibv_send_wr, Vec<ibv_sge>)>, Syndrome>;

fn translated(bytes: &[u8], at: u64) -> Translated {
    let mut sges = Vec::new();
    let wr = send(bytes, at, &RING, MOST, &mut sges)?;
    Ok(wr.map(|wr| (wr, sges)))
}

fn request(wqe: &SendWqe<'_>) -> (ibv_send_wr, Vec<ibv_sge>) {
    let found = translated(&encode(wqe), 0).expect("an entry");
    found.expect("one that does something")
}

fn rdma(wr: &ibv_send_wr) -> ibv_send_rdma {
    // SAFETY: numbers in every member.
    unsafe { wr.wr.rdma }
}

#[test]
fn sends_and_writes() {
    use SendOpcode as Op;
    let (none, imm, there) = ([0; 4], [1, 2, 3, 4], Some(REMOTE));
    for (opcode, theirs, remote, imm) in [
        (Op::SEND, IBV_WR_SEND, None, none),
        (Op::SEND_IMM, IBV_WR_SEND_WITH_IMM, None, imm),
        (Op::RDMA_WRITE, IBV_WR_RDMA_WRITE, there, none),
        (Op::RDMA_WRITE_IMM, IBV_WR_RDMA_WRITE_WITH_IMM, there, imm),
        (Op::RDMA_READ, IBV_WR_RDMA_READ, there, none),
    ] {
        let (wr, sges) = request(&SendWqe {
            imm,
            remote,
            ..wqe(opcode, Payload::Gather(&SGES))
        });
        assert_eq!((wr.opcode, wr.num_sge), (theirs, 2), "{opcode}");
        assert_eq!(sges, pieces(&SGES), "{opcode}");
        assert_eq!(wr.imm_data.to_ne_bytes(), imm);
        let there = remote.unwrap_or_default();
        let is = rdma(&wr);
        assert_eq!((is.remote_addr, is.rkey), (there.addr, there.rkey));
    }
}

#[test]
fn datagrams_go_to_the_handle_that_their_address_names() {
    let av = AvSeg::infiniband(0x1234_5678, 0x00ab_cdef, 7, 0);
    let handle: *mut ibv_ah = std::ptr::dangling_mut();
    let encode = |opcode, payload| {
        encode(&SendWqe {
            av: Some(av),
            ..wqe(opcode, payload)
        })
    };
    let translated = |bytes: &[u8], found| {
        let mut sges = Vec::new();
        let find = |asked: &AvSeg| {
            assert_eq!(asked.rlid.get(), 7);
            found
        };
        let wr = datagram(bytes, 64, &RING, MOST, &mut sges, find)?;
        Ok::<_, Syndrome>(wr.map(|wr| (wr, sges)))
    };
    let gathered = encode(SendOpcode::SEND_IMM, Payload::Gather(&SGES));
    let (wr, sges) = translated(&gathered, Some(handle)).unwrap().expect("one");
    assert_eq!(wr.opcode, IBV_WR_SEND_WITH_IMM);
    assert_eq!(sges, pieces(&SGES));
    // SAFETY: set for datagrams.
    let ud = unsafe { wr.wr.ud };
    let wanted = ibv_send_ud {
        ah: handle,
        remote_qpn: 0x00ab_cdef,
        remote_qkey: 0x1234_5678,
    };
    assert_eq!(ud, wanted);
    // Inline data are behind the address: 16 bytes of control, 48 bytes of address, 4 bytes of
    // length.
    let inline = encode(SendOpcode::SEND, Payload::Inline(&[b"inline"]));
    let (_, sges) = translated(&inline, Some(handle)).unwrap().expect("one");
    let piece = ibv_sge {
        addr: RING.addr + 64 + 68,
        length: 6,
        lkey: RING.lkey,
    };
    assert_eq!(sges, [piece]);
    // An entry without a destination; one of a connection; and one without effect, which needs no
    // destination.
    let wrong = Err(Syndrome::LOCAL_QP_OP);
    assert_eq!(translated(&gathered, None).map(|_| ()), wrong);
    let rc = super::tests::encode(&wqe(SendOpcode::SEND, Payload::Gather(&SGES[..1])));
    assert_eq!(translated(&rc, Some(handle)).map(|_| ()), wrong);
    let nop = super::tests::encode(&SendWqe::default());
    assert!(matches!(translated(&nop, None), Ok(None)));
}

#[test]
fn where_a_datagram_came_from() {
    let wc = ibv_wc {
        status: IBV_WC_SUCCESS,
        opcode: IBV_WC_RECV,
        byte_len: 48,
        src_qp: 0x12_3456,
        slid: 0x77,
        sl: 5,
        dlid_path_bits: 3,
        ..ibv_wc::default()
    };
    for grh in [false, true] {
        let wc_flags = if grh { IBV_WC_GRH } else { 0 };
        let from = outcome(&ibv_wc { wc_flags, ..wc }).source;
        let wanted = Source {
            qpn: 0x12_3456,
            slid: 0x77,
            sl: 5,
            path_bits: 3,
            grh,
        };
        assert_eq!(from, wanted);
    }
}

#[test]
fn a_key_to_invalidate_is_a_number() {
    let (wr, _) = request(&SendWqe {
        opcode: SendOpcode::SEND_INV,
        imm: [0, 0, 0x12, 0x34],
        ..SendWqe::default()
    });
    assert_eq!((wr.opcode, wr.imm_data), (IBV_WR_SEND_WITH_INV, 0x1234));
    assert_eq!(wr.num_sge, 0);
}

#[test]
fn atomics() {
    let old = [sge(0x2000, 5, 8)];
    let (compare, swap) = (7, 8);
    let swap = Atomic::CompareSwap { compare, swap };
    let add = Atomic::FetchAdd { add: 9 };
    for (atomic, opcode, operands) in [
        (swap, IBV_WR_ATOMIC_CMP_AND_SWP, (7, 8)),
        (add, IBV_WR_ATOMIC_FETCH_AND_ADD, (9, 0)),
    ] {
        let of = |sges| SendWqe {
            remote: Some(REMOTE),
            atomic: Some(atomic),
            ..wqe(atomic.opcode(), Payload::Gather(sges))
        };
        let (wr, sges) = request(&of(&old));
        // SAFETY: numbers in every member.
        let is = unsafe { wr.wr.atomic };
        assert_eq!(wr.opcode, opcode);
        assert_eq!((is.compare_add, is.swap), operands);
        assert_eq!((is.remote_addr, is.rkey), (REMOTE.addr, REMOTE.rkey));
        assert_eq!(sges, pieces(&old));
        let refused = translated(&encode(&of(&SGES)), 0).err();
        assert_eq!(refused, Some(Syndrome::LOCAL_LENGTH));
    }
}

#[test]
fn flags_are_carried_and_every_request_is_signaled() {
    for (fence, solicited, signaled, theirs) in [
        (false, false, false, 0),
        (true, false, false, IBV_SEND_FENCE),
        (false, true, true, IBV_SEND_SOLICITED),
    ] {
        let flags = WqeFlags {
            fence,
            solicited,
            signaled,
        };
        let (wr, _) = request(&SendWqe {
            opcode: SendOpcode::SEND,
            flags,
            ..SendWqe::default()
        });
        assert_eq!(wr.send_flags, theirs | IBV_SEND_SIGNALED);
    }
}

#[test]
fn entry_without_effect_gives_no_request() {
    let nop = encode(&SendWqe {
        opcode: SendOpcode::NOP,
        ..SendWqe::default()
    });
    assert!(matches!(translated(&nop, 0), Ok(None)));
}

/// The device copies short inline data when the request is posted. Longer ones stay in the ring,
/// and so do those that are combined with other pieces.
#[test]
fn short_inline_data_are_copied() {
    let data: Vec<u8> = (0..60).collect();
    let parts = [&data[..50], &data[50..]];
    let bytes = written_inline(&parts);
    let translated = |bytes: &[u8], inline| {
        let mut sges = Vec::new();
        let most = Most { inline, ..MOST };
        let wr = send(bytes, RING.len - 64, &RING, most, &mut sges).unwrap();
        (wr.expect("one that does something"), sges)
    };
    for (inline, copied) in [(0, false), (59, false), (60, true), (1000, true)] {
        let (wr, sges) = translated(&bytes, inline);
        assert_eq!(wr.send_flags & IBV_SEND_INLINE != 0, copied, "of {inline}");
        assert_eq!(sges.iter().all(|sge| sge.lkey == RING.lkey), !copied);
        let len: u32 = sges.iter().map(|sge| sge.length).sum();
        assert_eq!(len, 60);
        if copied {
            let piece = |sge: &ibv_sge| {
                let at = sge.addr as usize - bytes.as_ptr() as usize;
                bytes[at..][..sge.length as usize].to_vec()
            };
            assert_eq!(sges.iter().flat_map(piece).collect::<Vec<u8>>(), data);
        }
    }
    // Empty data are not copied, nor are data that the NIC has to fetch.
    for sges in [&[], &SGES[..]] {
        let bytes = encode(&wqe(SendOpcode::SEND, Payload::Gather(sges)));
        let (wr, _) = translated(&bytes, 1000);
        assert_eq!(wr.send_flags & IBV_SEND_INLINE, 0);
    }
}

/// The device reads inline data from their place in the ring, around its end too.
#[test]
fn inline_data_are_read_from_the_ring() {
    let data: Vec<u8> = (0..200).collect();
    let parts = [&data[..150], &data[150..]];
    let bytes = written_inline(&parts);
    // The offset of later laps counts on.
    for at in [0, 64, RING.len - 64, RING.len - 192, 5 * RING.len + 128] {
        let (wr, sges) = translated(&bytes, at).unwrap().unwrap();
        assert_eq!(wr.num_sge as usize, sges.len());
        let mut ring = vec![0xee; RING.len as usize];
        for (i, byte) in bytes.iter().enumerate() {
            ring[(at as usize + i) % RING.len as usize] = *byte;
        }
        let mut got = Vec::new();
        for sge in &sges {
            assert_eq!(sge.lkey, RING.lkey);
            let from = (sge.addr - RING.addr) as usize;
            got.extend_from_slice(&ring[from..from + sge.length as usize]);
        }
        assert_eq!(got, data, "at {at}");
        let around = (at + 48) % RING.len + 200 > RING.len;
        assert_eq!(sges.len(), if around { 2 } else { 1 }, "at {at}");
    }
}

#[test]
fn invalid_or_too_long_entry_is_refused() {
    let good = encode(&wqe(SendOpcode::SEND, Payload::Gather(&SGES)));
    let mut sges = Vec::new();
    let most = |sges| Most { sges, ..MOST };
    assert!(send(&good, 0, &RING, most(2), &mut sges).is_ok());
    let refused = send(&good, 0, &RING, most(1), &mut sges).err();
    assert_eq!(refused, Some(Syndrome::LOCAL_QP_OP));
    let (mut unknown, mut modified) = (good.clone(), good.clone());
    (unknown[3], modified[0]) = (0x7f, 1);
    for bytes in [&unknown, &modified, &good[..20].to_vec(), &Vec::new()] {
        assert_eq!(translated(bytes, 0).err(), Some(Syndrome::LOCAL_QP_OP));
    }
}

/// For any bytes: no panic, and no more pieces than the device takes.
#[test]
fn any_bytes() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut sges = Vec::new();
    for _ in 0..20_000 {
        let len = random.usize(..300);
        let mut bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        if let Some([a, _, _, opcode, _, _, _, ds, ..]) = bytes.get_mut(..8) {
            *a = 0;
            *opcode = [0, 1, 8, 9, 10, 11, 16, 17, 18][random.usize(..9)];
            *ds = (len / 16) as u8;
        }
        let at = random.u64(..) & !63;
        let most = Most {
            sges: 8,
            inline: random.usize(..100),
        };
        if let Ok(Some(wr)) = send(&bytes, at, &RING, most, &mut sges) {
            assert!(wr.num_sge as usize == sges.len() && sges.len() <= 8);
        }
        let whole = len - len % 16;
        let _ = receive(&bytes[..whole], 4, &mut sges);
    }
}

#[test]
fn receives() {
    let mut slot = [0; 64];
    encode_recv(&SGES, 64, &mut SliceSink::new(&mut slot)).unwrap();
    let mut sges = Vec::new();
    let wr = receive(&slot, 2, &mut sges).unwrap();
    assert_eq!(wr.num_sge, 2);
    assert_eq!(sges, pieces(&SGES));
    assert!(receive(&slot, 1, &mut sges).is_err());
    encode_recv(&[], 64, &mut SliceSink::new(&mut slot)).unwrap();
    assert_eq!(receive(&slot, 2, &mut sges).unwrap().num_sge, 0);
}

#[test]
fn completions_of_receives_report_the_received_data() {
    let wc = |opcode, wc_flags| ibv_wc {
        status: IBV_WC_SUCCESS,
        opcode,
        wc_flags,
        byte_len: 12,
        imm_data: u32::from_be_bytes([1, 2, 3, 4]).to_be(),
        ..ibv_wc::default()
    };
    let (with, some) = (IBV_WC_WITH_IMM, [1, 2, 3, 4]);
    for (opcode, flags, received, imm) in [
        (IBV_WC_RECV, 0, CqeOpcode::RESP_SEND, [0; 4]),
        (IBV_WC_RECV, with, CqeOpcode::RESP_SEND_IMM, some),
        (
            IBV_WC_RECV_RDMA_WITH_IMM,
            with,
            CqeOpcode::RESP_WR_IMM,
            some,
        ),
    ] {
        let is = outcome(&wc(opcode, flags));
        let wanted = Outcome {
            failure: None,
            received,
            len: 12,
            imm,
            source: Source::default(),
        };
        assert_eq!(is, wanted);
    }
    let mut key = wc(IBV_WC_RECV, IBV_WC_WITH_INV);
    key.imm_data = 0x1234;
    let is = outcome(&key);
    assert_eq!(is.received, CqeOpcode::RESP_SEND_INV);
    assert_eq!(is.imm, [0, 0, 0x12, 0x34]);
}

#[test]
fn statuses_of_verbs_are_those_of_the_library() {
    for (theirs, ours) in [
        (IBV_WC_LOC_LEN_ERR, Status::LOCAL_LENGTH),
        (IBV_WC_LOC_QP_OP_ERR, Status::LOCAL_QP_OPERATION),
        (IBV_WC_LOC_PROT_ERR, Status::LOCAL_PROTECTION),
        (IBV_WC_WR_FLUSH_ERR, Status::FLUSHED),
        (IBV_WC_BAD_RESP_ERR, Status::BAD_RESPONSE),
        (IBV_WC_LOC_ACCESS_ERR, Status::LOCAL_ACCESS),
        (IBV_WC_REM_INV_REQ_ERR, Status::REMOTE_INVALID_REQUEST),
        (IBV_WC_REM_ACCESS_ERR, Status::REMOTE_ACCESS),
        (IBV_WC_REM_OP_ERR, Status::REMOTE_OPERATION),
        (IBV_WC_RETRY_EXC_ERR, Status::TRANSPORT_RETRY),
        (IBV_WC_RNR_RETRY_EXC_ERR, Status::RNR_RETRY),
        (IBV_WC_REM_ABORT_ERR, Status::REMOTE_ABORTED),
        (22, Status::UNKNOWN_SYNDROME),
    ] {
        let wc = ibv_wc {
            status: theirs,
            vendor_err: 0x1_0203,
            ..ibv_wc::default()
        };
        let (syndrome, vendor) = outcome(&wc).failure.expect("a failure");
        assert_eq!((Status::from_syndrome(syndrome), vendor), (ours, 3));
    }
}
