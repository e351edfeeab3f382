//! Queue pairs of datagrams over the virtual NIC that is linked in.

mod common;
mod verbs_device;

use common::*;
use verbs_device::datagrams;

plain_cases! {
    they_say_where_they_came_from_and_are_answered =>
        datagrams::it_says_where_it_came_from_and_is_answered(Device::emulated);
    one_queue_pair_sends_to_many => datagrams::one_queue_pair_sends_to_many(Device::emulated);
    messages_of_every_shape_arrive => datagrams::messages_of_every_shape_arrive(Device::emulated);
    what_nobody_takes_is_lost => datagrams::what_nobody_takes_is_lost(Device::emulated);
    a_stream_changes_what_is_sent => datagrams::a_stream_changes_what_is_sent(Device::emulated);
    a_failure_flushes_all_and_a_reset_mends_it =>
        datagrams::a_failure_flushes_all_and_a_reset_mends_it(Device::emulated);
    a_receive_that_is_too_small_fails =>
        datagrams::a_receive_that_is_too_small_fails(Device::emulated);
    what_makes_no_sense_is_refused => datagrams::what_makes_no_sense_is_refused(Device::emulated);
    wrong_destinations_are_refused => datagrams::wrong_destinations_are_refused(Device::emulated);
}
