// Package member is a light member of classic consumer groups over a real socket: a few kilobytes and one goroutine each,
// so that thousands fit beside the brokers that they measure. It does what consumers do when nothing goes wrong and when a
// broker dies: finds its coordinator, joins, assigns if it leads, beats its heart, joins again when it is told to, and looks
// for the coordinator anew when a connection breaks or a broker says that it is not the one. It reads no records.
//
// A [Conn] is one connection with one request on its way at a time. A [Member] is for one goroutine, [Member.Run]; what
// happens to it is told by [Config.Notice], on that goroutine. Callers are the commands and tests of integration.
package member
