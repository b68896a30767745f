package main

import "context"

func measureFailover(ctx context.Context, o options) (int, error) { return 0, nil }
