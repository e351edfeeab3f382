//! The states of a QP as verbs number them, and the attributes that each transition needs and
//! permits, by kind of QP.

use rustix::io::Errno;
use vmlx5::{QpState, Service};

use crate::abi::core::attr::*;

/// The service with this number in verbs.
///
/// # Errors
/// `EOPNOTSUPP`: the kind is not emulated. `EINVAL`: there is no such kind.
pub(crate) fn service(number: u8) -> Result<Service, Errno> {
    match number {
        2 => Ok(Service::Rc),
        3 => Ok(Service::Uc),
        4 => Ok(Service::Ud),
        0 | 1 | 5..=10 | 0xff => Err(Errno::OPNOTSUPP),
        _ => Err(Errno::INVAL),
    }
}

pub(crate) const RESET: u8 = 0;
pub(crate) const INIT: u8 = 1;
pub(crate) const RTR: u8 = 2;
pub(crate) const RTS: u8 = 3;
pub(crate) const SQD: u8 = 4;
pub(crate) const SQE: u8 = 5;
pub(crate) const ERR: u8 = 6;
const LAST: u8 = ERR;

/// The number of a state in verbs.
pub(crate) fn number(state: QpState) -> u8 {
    match state {
        QpState::Reset => RESET,
        QpState::Init => INIT,
        QpState::Rtr => RTR,
        QpState::Rts => RTS,
        QpState::Sqd => SQD,
        QpState::Sqe => SQE,
        QpState::Err => ERR,
    }
}

/// The attributes that a transition needs, and those that it also permits.
type Way = (u32, u32);

/// The transition of a UD QP from one state to another; `None`: it does not exist.
fn way_of_datagrams(from: u8, to: u8) -> Option<Way> {
    Some(match (from, to) {
        (_, RESET | ERR) => (0, 0),
        (RESET, INIT) => (PKEY_INDEX | PORT | QKEY, 0),
        (INIT, INIT) => (0, PKEY_INDEX | PORT | QKEY),
        (INIT, RTR) => (0, PKEY_INDEX | QKEY),
        (RTR, RTS) => (SQ_PSN, CUR_STATE | QKEY),
        (RTS | SQD | SQE, RTS) => (0, CUR_STATE | QKEY),
        (RTS, SQD) => (0, EN_SQD_ASYNC_NOTIFY),
        (SQD, SQD) => (0, CUR_STATE | PKEY_INDEX | QKEY),
        _ => return None,
    })
}

/// The transition from one state to another; `None`: it does not exist.
fn way(service: Service, from: u8, to: u8) -> Option<Way> {
    if service == Service::Ud {
        return way_of_datagrams(from, to);
    }
    const ALTERNATE: u32 = ALT_PATH | PATH_MIG_STATE;
    const CLOCKS: u32 = TIMEOUT | RETRY_CNT | RNR_RETRY | MIN_RNR_TIMER;
    const DEPTHS: u32 = MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC;
    // Attributes of the responder, or of a requester that receives responses.
    let answered = |attributes: u32| match service {
        Service::Rc => attributes,
        _ => 0,
    };
    Some(match (from, to) {
        (_, RESET | ERR) => (0, 0),
        (RESET, INIT) => (PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        (INIT, INIT) => (0, PKEY_INDEX | PORT | ACCESS_FLAGS),
        (INIT, RTR) => (
            AV | PATH_MTU | DEST_QPN | RQ_PSN | answered(MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
            ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
        ),
        (RTR, RTS) => (
            SQ_PSN | answered(TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC),
            CUR_STATE | ACCESS_FLAGS | answered(MIN_RNR_TIMER) | ALTERNATE,
        ),
        (RTS, RTS) | (SQD, RTS) => (
            0,
            CUR_STATE | ACCESS_FLAGS | answered(MIN_RNR_TIMER) | ALTERNATE,
        ),
        (RTS, SQD) => (0, EN_SQD_ASYNC_NOTIFY),
        (SQD, SQD) => (
            0,
            CUR_STATE | PKEY_INDEX | ACCESS_FLAGS | ALTERNATE | answered(CLOCKS | DEPTHS),
        ),
        (SQE, RTS) => (0, CUR_STATE | ACCESS_FLAGS),
        _ => return None,
    })
}

/// Checks that a QP may change from one state to another with the attributes in `mask`.
///
/// # Errors
/// `EINVAL`.
pub(crate) fn check(service: Service, from: u8, to: u8, mask: u32) -> Result<(), Errno> {
    if from > LAST || to > LAST {
        return Err(Errno::INVAL);
    }
    let (needs, may) = way(service, from, to).ok_or(Errno::INVAL)?;
    if mask & needs == needs && mask & !(needs | may | STATE) == 0 {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_and_every_foreign_attribute_is_refused() {
        let ways = [
            (RESET, INIT),
            (INIT, RTR),
            (RTR, RTS),
            (RTS, SQD),
            (SQD, SQD),
            (SQD, RTS),
            (SQE, RTS),
        ];
        let all = [Service::Rc, Service::Uc, Service::Ud].map(|kind| ways.map(|way| (kind, way)));
        for (kind, (from, to)) in all.into_iter().flatten() {
            let (needs, may) = way(kind, from, to).unwrap();
            assert_eq!(check(kind, from, to, needs | STATE), Ok(()));
            assert_eq!(check(kind, from, to, needs | may | STATE), Ok(()));
            for bit in (0..32).map(|b| 1 << b) {
                let expect = if needs & bit != 0 {
                    Err(Errno::INVAL)
                } else {
                    Ok(())
                };
                assert_eq!(check(kind, from, to, (needs | STATE) & !bit), expect);
                let expect = if (needs | may | STATE) & bit == 0 {
                    Err(Errno::INVAL)
                } else {
                    Ok(())
                };
                assert_eq!(check(kind, from, to, needs | STATE | bit), expect);
            }
        }
        let rc = Service::Rc;
        for (from, to) in [
            (RESET, RTR),
            (RESET, RTS),
            (INIT, RTS),
            (RTS, INIT),
            (ERR, RTS),
        ] {
            assert_eq!(check(rc, from, to, STATE), Err(Errno::INVAL), "{from} {to}");
        }
        for from in [RESET, INIT, RTR, RTS, ERR] {
            assert_eq!(check(rc, from, RESET, STATE), Ok(()));
            assert_eq!(check(rc, from, ERR, STATE), Ok(()));
        }
        assert_eq!(check(rc, RESET, 7, STATE), Err(Errno::INVAL));
        // After failed sends, a UD QP can be set to continue.
        assert_eq!(check(Service::Ud, SQE, RTS, STATE | QKEY), Ok(()));
        assert_eq!(check(Service::Ud, INIT, RTR, STATE | AV), Err(Errno::INVAL));
    }
}
