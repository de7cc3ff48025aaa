"""Where deployments come from: the files that people deploy, and the commands in them."""
