//! Control operations on queue pairs: creation, states and removal.

use super::{Core, Nic, check_port};
use crate::attr::{Modify, QpAttr, QpInfo, Service};
use crate::error::{NicError, Object};
use crate::event::Source;
use crate::fabric::LinkState;
use crate::frame::psn;
use crate::mr::Access;
use crate::object::{Cqn, PdId, QpState, Qpn, Srqn, UarId};
use crate::qp::requester::{Begin, Datagrams};
use crate::qp::responder::Answer;
use crate::qp::{Qp, Remote};
use crate::timer::ack_timeout;

/// Checks the rights of the remote end of a queue pair.
fn remote_rights(access: Access) -> Result<(), NicError> {
    if !access.contains(Access::LOCAL_WRITE) {
        return Ok(());
    }
    Err(NicError::Access {
        object: Object::Qp,
        access: access.bits(),
        why: "only remote rights are valid on a queue pair",
    })
}

/// The objects that a queue pair uses.
type Uses = (PdId, UarId, [Cqn; 2], Option<Srqn>);

impl Core {
    /// Adds a queue pair to the users of its objects, or removes it.
    fn count_uses(&mut self, (pd, uar, cqs, srq): Uses, by: i32) {
        self.pds.count_users(pd.0, by);
        self.uars.count_users(uar.0, by);
        for cq in cqs {
            self.ctx.cqs.count_users(cq.0, by);
        }
        if let Some(srq) = srq {
            self.ctx.srqs.count_users(srq.0, by);
        }
    }
}

impl Nic {
    /// Creates a queue pair, in state RESET.
    ///
    /// # Errors
    /// An object that it names is unknown, a ring is not inside its memory or is too large, or the
    /// limit of queue pairs is reached.
    pub fn create_qp(&mut self, attr: QpAttr) -> Result<Qpn, NicError> {
        let core = &mut self.core;
        let (pd, uar) = (attr.pd, attr.uar);
        let cqs = [attr.send_cq, attr.recv_cq];
        core.pds.get(pd.0)?;
        core.uars.get(uar.0)?;
        for cq in cqs {
            core.ctx.cqs.get(cq.0)?;
        }
        Qp::check(&attr, &core.config)?;
        let srq = attr.srq;
        let recv_pd = match srq {
            Some(srq) => core.ctx.srqs.get(srq.0)?.attr.pd,
            None => pd,
        };
        let patient = !core.config.strict;
        let pkey = core.config.pkey;
        let ud = attr.service == Service::Ud;
        let number = core.qps.insert(|number| {
            let mut qp = Qp::new(number, attr, recv_pd, patient);
            qp.ud = ud.then(|| Box::new(Datagrams::new(pkey)));
            qp
        })?;
        core.count_uses((pd, uar, cqs, srq), 1);
        let slot = core.qps.slot(number);
        core.reserve_events();
        if let (Ok(uar), Some(slot)) = (core.uars.get_mut(uar.0), slot) {
            uar.users.push(slot);
        }
        Ok(Qpn(number))
    }

    /// Removes a queue pair with its outstanding work, without completions. It no longer answers
    /// the other end.
    ///
    /// # Errors
    /// The queue pair does not exist.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), NicError> {
        let core = &mut self.core;
        let (slot, qp) = core.qps.remove(qpn.0)?;
        core.ready.retain(|&s| s != slot);
        core.watch.retain(|&s| s != slot);
        core.timers.listed.retain(|&s| s != slot);
        core.ctx.events.forget(Source::Qp(slot));
        if let Ok(uar) = core.uars.get_mut(qp.uar.0) {
            uar.users.retain(|&s| s != slot);
        }
        core.count_uses((qp.pd, qp.uar, [qp.send_cq, qp.recv_cq], qp.srq), -1);
        Ok(())
    }

    /// Returns the status of a queue pair.
    ///
    /// # Errors
    /// The queue pair does not exist.
    pub fn query_qp(&self, qpn: Qpn) -> Result<QpInfo, NicError> {
        self.core.qps.get(qpn.0).map(Qp::info)
    }

    /// Returns the state of the link to a queue pair's other end; `None` before RTR.
    ///
    /// # Errors
    /// The queue pair does not exist.
    pub fn link_state(&self, qpn: Qpn) -> Result<Option<LinkState>, NicError> {
        let remote = self.core.qps.get(qpn.0)?.remote;
        Ok(remote.map(|r| self.wire.state(r.node, r.peer)))
    }

    /// Moves a queue pair to another state: RESET to INIT to RTR to RTS, between RTS and SQD, from
    /// any to RESET, from any except RESET to ERR; or changes attributes in its present state.
    ///
    /// # Errors
    /// The queue pair does not exist, the transition is not allowed, an attribute exceeds its
    /// limit, or the fabric has no room for another link. A remote node that cannot be reached is
    /// no error here: work posted to it fails, and [`link_state`](Nic::link_state) gives the
    /// reason.
    pub fn modify_qp(&mut self, qpn: Qpn, change: Modify) -> Result<(), NicError> {
        let core = &mut self.core;
        let most = core.config.max_rd_atomic;
        let slot = core.qps.slot(qpn.0).unwrap_or_default();
        let qp = core.qps.get_mut(qpn.0)?;
        let (from, to) = (qp.state, change.target());
        let limit = |what, value: u32, limit: u32| NicError::within(Object::Qp, what, value, limit);
        let no_way = |to| NicError::Transition {
            qpn: qpn.0,
            from,
            to,
        };
        match (from, change) {
            (_, Modify::Reset) => {
                qp.reset();
                return Ok(());
            }
            (QpState::Reset | QpState::Init, Modify::Init { access, port, qkey }) => {
                check_port(port, &core.config)?;
                remote_rights(access)?;
                qp.access = access;
                if let Some(ud) = &mut qp.ud {
                    (ud.port, ud.qkey) = (port, qkey);
                }
            }
            (
                QpState::Init,
                Modify::Rtr {
                    path,
                    rq_psn,
                    max_dest_rd_atomic,
                    min_rnr_timer,
                },
            ) if qp.ud.is_none() => {
                let (remote, remote_qpn) = (path.remote, path.remote_qpn);
                limit("remote_qpn", remote_qpn.0, psn::MASK)?;
                limit("rq_psn", rq_psn, psn::MASK)?;
                limit("max_dest_rd_atomic", max_dest_rd_atomic.into(), most.into())?;
                limit("min_rnr_timer", min_rnr_timer.into(), 31)?;
                check_port(path.port, &core.config)?;
                let peer = self
                    .wire
                    .connect(remote)
                    .map_err(|source| NicError::Link { qpn: qpn.0, source })?;
                qp.remote = Some(Remote {
                    node: remote,
                    peer,
                    qpn: remote_qpn.0,
                    port: path.port,
                });
                qp.mtu_log = path.mtu.log();
                qp.resp.begin(rq_psn, max_dest_rd_atomic, min_rnr_timer);
                qp.fresh = true;
                if qp.patient && qp.service == Service::Rc {
                    // The other end may have sent already, and may wait for a hint.
                    qp.resp.answers.push_back(Answer::Hint);
                }
            }
            (
                QpState::Rtr,
                Modify::Rts {
                    sq_psn,
                    max_rd_atomic,
                    timeout,
                    retry_cnt,
                    rnr_retry,
                },
            ) if qp.ud.is_none() => {
                limit("sq_psn", sq_psn, psn::MASK)?;
                limit("max_rd_atomic", max_rd_atomic.into(), most.into())?;
                limit("timeout", timeout.into(), 31)?;
                limit("retry_cnt", retry_cnt.into(), 7)?;
                limit("rnr_retry", rnr_retry.into(), 7)?;
                qp.sq.begin(Begin {
                    psn: sq_psn,
                    mtu_log: qp.mtu_log,
                    max_rd_atomic,
                    timeout: match qp.service {
                        Service::Rc => ack_timeout(timeout),
                        Service::Uc | Service::Ud => None,
                    },
                    retry_cnt,
                    rnr_retry,
                });
            }
            (QpState::Init, Modify::UdRtr) if qp.ud.is_some() => {}
            (QpState::Rtr, Modify::UdRts { sq_psn }) if qp.ud.is_some() => {
                limit("sq_psn", sq_psn, psn::MASK)?;
                qp.sq.begin(Begin {
                    psn: sq_psn,
                    mtu_log: qp.mtu_log,
                    ..Begin::default()
                });
            }
            (QpState::Rts, Modify::Sqd) => qp.drained = false,
            (QpState::Sqd, Modify::Resume) => {
                qp.ring();
            }
            (QpState::Sqe, Modify::Resume) => qp.sq.restart(),
            (
                QpState::Init | QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe,
                Modify::Attr(change),
            ) => {
                let rest = from == QpState::Sqd && qp.sq.pending.is_empty();
                if change.needs_rest() && !rest {
                    return Err(no_way(from));
                }
                let check = |what, value: Option<u8>, most: u8| match value {
                    Some(value) => limit(what, value.into(), most.into()),
                    None => Ok(()),
                };
                check("min_rnr_timer", change.min_rnr_timer, 31)?;
                check("max_dest_rd_atomic", change.max_dest_rd_atomic, most)?;
                check("max_rd_atomic", change.max_rd_atomic, most)?;
                check("timeout", change.timeout, 31)?;
                check("retry_cnt", change.retry_cnt, 7)?;
                check("rnr_retry", change.rnr_retry, 7)?;
                if let Some(access) = change.access {
                    remote_rights(access)?;
                }
                qp.change(&change);
                return Ok(());
            }
            (_, Modify::Error) if from != QpState::Reset => qp.enter_error(),
            _ => return Err(no_way(to)),
        }
        qp.state = to;
        core.schedule(slot);
        Ok(())
    }
}
