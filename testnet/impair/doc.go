// Package impair is a network in user space whose links are as bad as a test wants them: they delay, lose, repeat, reorder and damage
// IP packets, in each direction by itself, or carry nothing at all. It stands in for the netem queue of a kernel that has none.
//
// Hosts hand in and get whole IPv4 packets: from TUN devices (OpenTUN, Linux, root), moved into network namespaces, so that whatever
// runs there, over UDP or TCP, passes through here unchanged; or from anything else that reads and writes one packet at a time.
//
// What happens to the nth packet of a link follows from the seed alone; which packet is the nth is up to the hosts.
package impair
