// Package group coordinates consumer groups: who is a member, in which generation, with which share of the work. What it
// tells its members is committed metadata first (G5); what it alone knows is who waits, and for how long.
package group
