"""The console command `posttrain`."""
