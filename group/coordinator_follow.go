package group

import "github.com/millrace/millrace/metadata"

// follow takes over and lets go of groups as the present Image says. Only a change of the coordinator epoch can have moved
// one; records change by this broker's own proposals.
func (c *Coordinator) follow() {
	im := c.cfg.Store.Image()
	if _, epoch := im.Coordinator(metadata.GroupCoordinator, ""); epoch == c.coordinatorEpoch && c.registered(im) {
		return
	} else if c.registered(im) {
		c.coordinatorEpoch = epoch
	}
	c.each(func(e *entry) { c.with(e, nil) })
	taken := 0
	for g := range im.Groups() {
		if len(g.Members) == 0 {
			continue // nobody's session to watch
		}
		if _, mine := c.mine(im, g.Name); mine && c.lookup(g.Name, false) == nil {
			c.with(c.lookup(g.Name, true), nil)
			taken++
		}
	}
	if taken > 0 {
		c.logger.Info("groups taken over", "groups", taken, "coordinatorEpoch", c.coordinatorEpoch)
	}
}

// registered reports whether the metadata shows this process's registration.
func (c *Coordinator) registered(im *metadata.Image) bool {
	b := im.Broker(c.cfg.Broker)
	return b != nil && b.Incarnation == c.cfg.Incarnation && im.FeatureLevel() >= metadata.GroupsFeatureLevel
}
