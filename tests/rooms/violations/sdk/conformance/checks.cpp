void add(List& list) {
  list.push_back({{"file.held", "P-01", "is named"}, "", f});
  list.push_back({{"file.unnamed", "P-02", "is not named, here and at another; P-01"}, "P-09", f});
  list.push_back({{"file.of_nothing", "P-77", "is for nothing"}, "", f});
}
